# SPDX-License-Identifier: BSD-3-Clause
"""Wrong calls of the convolution of integers, and what is not differentiable."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bad_arguments.int8_conv import NUMBERS, OPS, PAIRS, Op
from tests.support.checks.bad_calls import BadCallsAndOtherKinds
from tests.support.processes import run_program

LIMIT, SHIFTED_LIMIT = 131071, 65536


class TestBadCalls(BadCallsAndOtherKinds):
    OPS, PAIRS = OPS, PAIRS

    def check_result(self, op: Op, result: Tensor, device: str) -> None:
        assert result.shape == ((2, 4, 3, 5) if op.full else (2, 4, 3, 6))
        assert result.dtype == op.output


@pytest.mark.parametrize("bad", NUMBERS, ids=str)
def test_wrong_numbers(bad: Any, any_device: str) -> None:
    """Of an op with all arguments: those of a channel's group name the input."""
    op = Op()
    arguments = op.arguments(any_device)
    arguments[bad.argument] = bad.change(arguments)
    with pytest.raises(ValueError, match=rf"^baraquant::int8_conv: .*(?:{bad.words})"):
        op(arguments)


def test_more_channels_than_an_integer_counts(any_device: str) -> None:
    """Of no weight: any number of groups divides its outputs."""
    one = torch.ones((), device=any_device)
    x = torch.zeros(1, 0, 4, dtype=torch.int8, device=any_device)
    for of_group in (2, 4):
        weight = torch.zeros(0, of_group, 2, dtype=torch.int8, device=any_device)
        with pytest.raises(
            ValueError, match=rf"^baraquant::int8_conv: .*got {of_group} \* {2**62}"
        ):
            ops.int8_conv(x, weight, one, one.expand(0), groups=2**62)


def test_depth_beyond_the_exact_range(any_device: str) -> None:
    def of_depth(depth: int, integers: torch.dtype = torch.int8, **options: Any) -> Tensor:
        x = torch.zeros(1, depth // 2, 2, dtype=integers, device=any_device)
        w = torch.zeros(2, depth // 2, 2, dtype=torch.int8, device=any_device)
        one = torch.ones((), device=any_device)
        return ops.int8_conv(x, w, one, one.expand(2), **options)

    zero = torch.zeros((), dtype=torch.int32, device=any_device)
    shifted = {"input_zero_point": zero}
    for limit, options in (
        (LIMIT - 1, {}),
        (SHIFTED_LIMIT, shifted),
        (SHIFTED_LIMIT, {"dtype": torch.float32, **shifted}),
    ):
        assert of_depth(limit, **options).shape == (1, 2, 1)
        words = rf"^baraquant::int8_conv: .*weight\[0\].* at most {LIMIT if not options else limit}"
        with pytest.raises(ValueError, match=words):
            of_depth(limit + 2, **options)
    with pytest.raises(ValueError, match=f"at most {SHIFTED_LIMIT} elements .for uint8"):
        of_depth(SHIFTED_LIMIT + 2, torch.uint8)


@pytest.mark.parametrize("name", ("input_scale", "weight_scale"))
def test_a_scale_that_requires_grad_is_refused(name: str, device: str) -> None:
    op = Op()
    arguments = op.arguments(device)
    arguments[name].requires_grad_()
    words = rf"^baraquant::int8_conv: expected {name} to be a constant.* requires grad"
    with pytest.raises(NotImplementedError, match=words):
        op(arguments)
    with torch.no_grad():
        assert not op(arguments).requires_grad


@pytest.mark.parametrize("batched", (True, False))
def test_the_bias_has_a_gradient(batched: bool, device: str) -> None:
    """The sum over all but its channel; twice it is 0."""
    op = Op(torch.float64)
    arguments = op.arguments(device)
    arguments["bias"].requires_grad_()
    if not batched:
        arguments["input"] = arguments["input"][0]
    y = op(arguments)
    assert y.requires_grad
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double().to(device)
    (got,) = torch.autograd.grad(y, arguments["bias"], dy)
    wanted = dy.movedim(1 if batched else 0, 0).flatten(1).sum(1)
    torch.testing.assert_close(got, wanted)
    assert not op(op.arguments(device)).requires_grad


def test_sizes_that_memory_cannot_hold() -> None:
    """A padded image of more bytes than an int64 counts is an error, not a crash."""
    x, one = torch.zeros(1, 2, 1, 1, 1, dtype=torch.int8), torch.ones(1)
    most = 2**31 - 1
    with pytest.raises(RuntimeError):
        ops.int8_conv(x, x, one, one, padding=most, stride=most)


def test_a_wrong_type_in_python() -> None:
    x, one = torch.zeros(1, 1, 1, dtype=torch.int8), torch.ones(1)
    for name, value in (("stride", 1.5), ("padding", "same"), ("dilation", [1.5])):
        with pytest.raises(TypeError, match=re.escape(name)):
            ops.int8_conv(x, x, one, one, **{name: value})


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.int8_conv.fuzz")
    assert "examples passed" in done.stdout
