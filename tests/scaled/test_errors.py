# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the scaled family: the right exception with the right words, on all devices."""

from __future__ import annotations

import pytest
import torch

from baraquant import ops
from tests.support.bad_arguments.scaled import OPS, PAIRS
from tests.support.checks.bad_calls import BadCallsAndOtherKinds
from tests.support.processes import run_program


class TestBadCalls(BadCallsAndOtherKinds):
    OPS, PAIRS = OPS, PAIRS


def test_arguments_of_other_types() -> None:
    x, f = torch.ones(2, 3), torch.ones(3)
    with pytest.raises(TypeError, match=r"scaled_quantize_per_token: expected factor to be of"):
        ops.scaled_quantize_per_token(x, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"scaled_quantize_per_token: expected random to be of"):
        ops.scaled_quantize_per_token(x, f, random=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"draw_random: expected count to be of"):
        ops.draw_random(x, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"draw_random: expected count to fit in 64 bits"):
        ops.draw_random(x, 2**70)


@pytest.mark.parametrize("name", ("backward", "rounding"))
def test_options_of_other_types(name: str) -> None:
    x, w = torch.ones(2, 3), torch.ones(4, 3)
    for value in (1, None, 2.0, True):
        with pytest.raises(TypeError, match=rf"qat_linear: expected {name} to be of type str"):
            ops.qat_linear(x, w, **{name: value})


def test_vmap_is_refused() -> None:
    x = torch.ones(3, 4, 5)
    with pytest.raises(NotImplementedError, match=r"scaled_quantize_per_token.*vmap"):
        torch.vmap(ops.scaled_quantize_per_token)(x, torch.ones(3, 5))
    with pytest.raises(NotImplementedError, match=r"transpose_int8.*vmap"):
        torch.vmap(ops.transpose_int8)(x.to(torch.int8))


def test_integers_have_no_gradient() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    for t in (
        *ops.scaled_quantize_per_token(x, torch.ones(4)),
        *ops.scaled_quantize_transposed(x, torch.ones(3, requires_grad=True)),
        ops.draw_random(x),
    ):
        assert not t.requires_grad


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.scaled.fuzz")
    assert "examples passed" in done.stdout
