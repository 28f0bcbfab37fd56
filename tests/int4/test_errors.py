# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the ops of four-bit weights: the exception and its words, on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from baraquant import ops
from tests.support.bad_arguments.int4 import OPS, PAIRS, Op
from tests.support.calls.int4 import INT4_CALLS, Int4Call
from tests.support.checks.bad_calls import BadCallsAndOtherKinds
from tests.support.processes import run_program


class TestBadCalls(BadCallsAndOtherKinds):
    OPS, PAIRS = OPS, PAIRS

    def test_at_least_twelve_bad_cases(self, op: Op) -> None:
        if op.name != "pack_int4":  # of one tensor
            super().test_at_least_twelve_bad_cases(op)


@pytest.mark.parametrize("call", [c for c in INT4_CALLS if c.differentiable], ids=str)
def test_recorded_calls_say_the_same(call: Int4Call) -> None:
    """The op for int8 computes those, but is not named."""
    _, right = call.arguments(*call.tensors((3, 10)))
    wrong = {
        "packed": right["packed"][:, 1:],
        "group_factor": right["group_factor"].int(),
        "weight_scale": right["weight_scale"][1:],
        "group_size": 3,
        "quant_max": 300,
    }
    for name, value in wrong.items():
        with pytest.raises((ValueError, TypeError)) as plain:
            call.function(**right | {name: value})
        recorded = right | {"input": right["input"].clone().requires_grad_()}
        with pytest.raises(type(plain.value), match=f"^{re.escape(str(plain.value))}$"):
            call.function(**recorded | {name: value})


def test_arguments_of_other_types() -> None:
    w = torch.ones(2, 4)
    with pytest.raises(TypeError, match=r"choose_int4_qparams: expected group_size to be of"):
        ops.choose_int4_qparams(w, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"quantize_int4: expected scale to be of"):
        ops.quantize_int4(w, 1.0, w, 2)  # type: ignore[arg-type]


def test_a_scale_that_requires_grad_is_refused() -> None:
    for call in (c for c in INT4_CALLS if c.verb.endswith("linear")):
        _, right = call.arguments(*call.tensors((3, 8)))
        for name in ("weight_scale", "input_scale", "act_scale"):
            if name in right:
                scale = right[name].clone().requires_grad_()
                with pytest.raises(NotImplementedError, match=rf"{call.verb}: .*{name}"):
                    call.function(**right | {name: scale})


def test_vmap() -> None:
    """Over the input of a linear op; the rest is refused."""
    for call in (c for c in INT4_CALLS if c.verb.endswith("linear")):
        _, right = call.arguments(*call.tensors((3, 5, 8)))
        of_rows = [n for n in ("input", "input_scale", "input_zero_point") if n in right]
        rest = {k: v for k, v in right.items() if k not in of_rows}

        def one(*values: torch.Tensor, call: Int4Call = call, rest=rest, of_rows=of_rows):  # type: ignore[no-untyped-def]
            return call.function(**rest, **dict(zip(of_rows, values, strict=True)))

        got = torch.vmap(one)(*(right[name] for name in of_rows))
        assert torch.equal(got, call.function(**right))
    with pytest.raises(NotImplementedError, match=r"pack_int4.*vmap"):
        torch.vmap(ops.pack_int4)(torch.ones(3, 4, 5, dtype=torch.int8))


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.int4.fuzz")
    assert "examples passed" in done.stdout
