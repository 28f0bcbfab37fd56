# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the fused family: the right exception with the right words, alike on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from baraquant import ops
from tests.support.bad_arguments.affine import DEVICE, not_plain
from tests.support.bad_arguments.fused import BAD, OPS, PAIRS, Op, first_of
from tests.support.checks.bad_calls import check_messages, check_meta
from tests.support.processes import run_program

by_op = pytest.mark.parametrize("op", OPS, ids=str)


@pytest.mark.exhaustive
@by_op
def test_right_arguments_are_taken(op: Op, any_device: str) -> None:
    """So that each wrong call below is wrong in one way only."""
    op(op.arguments(any_device))


@by_op
def test_at_least_twelve_bad_cases(op: Op) -> None:
    assert sum(other == op for other, _ in PAIRS) >= 12


@by_op
def test_type_and_words(op: Op, any_device: str) -> None:
    check_messages(op, BAD, any_device)


@pytest.mark.exhaustive
@by_op
def test_meta_says_the_same(op: Op) -> None:
    check_meta(op, BAD, but=DEVICE)


@pytest.mark.exhaustive
@by_op
def test_quantized_tensors(op: Op) -> None:
    name = first_of(op)
    wrong = torch.quantize_per_tensor(torch.ones(2, 3), 1.0, 0, torch.qint8)
    with pytest.raises(TypeError, match=f"^baraquant::{op.name}: expected {name} .*QInt8"):
        op(op.arguments("cpu") | {name: wrong})


@pytest.mark.exhaustive
@by_op
def test_tensors_that_are_not_plain(op: Op) -> None:
    """The message names the public op and the argument, through torch.ops and baraquant.ops."""
    right = op.arguments("cpu")
    for name in [n for n, value in right.items() if isinstance(value, torch.Tensor)]:
        for kind, make in not_plain(right[name]).items():
            if kind == "jagged" and op.name == "rms_norm":
                continue  # which PyTorch takes for its own op of that name, and refuses
            for call in (op, lambda a: getattr(ops, op.name)(**a)):
                with pytest.raises(TypeError, match=f"^baraquant::{op.name}: expected {name} to "):
                    call(right | {name: make()})


@pytest.mark.exhaustive
@by_op
def test_none_and_other_objects(op: Op) -> None:
    """What PyTorch's schema refuses, and None, for which it passes an undefined tensor."""
    for name in sorted(set(op.arguments("cpu")) - {"symmetric"}):  # a bool is any object's truth
        for wrong in (None, 3 + 2j, [1.0, 2.0], object()):
            if wrong is None and name in ("weight", "bias"):
                continue
            with pytest.raises((TypeError, RuntimeError)) as raised:
                op(op.arguments("cpu") | {name: wrong})
            if type(raised.value) is RuntimeError:
                assert re.search(r"Expected a value of type|match any schema", str(raised.value))


@pytest.mark.parametrize("op", [op for op in OPS if op.quantize], ids=str)
def test_what_requires_grad_is_refused(op: Op) -> None:
    """The message says what is differentiable; without grad mode the call is taken."""
    right = op.arguments("cpu")
    for name, value in right.items():
        if not isinstance(value, torch.Tensor):
            continue
        wrong = right | {name: value.clone().requires_grad_()}
        message = rf"^baraquant::{op.name}: .*call {op.base} .*dynamic_fake_quantize_per_token"
        with pytest.raises(NotImplementedError, match=message):
            op(wrong)
        with torch.no_grad():
            op(wrong)


@pytest.mark.exhaustive
def test_core_ops_check_their_numbers() -> None:
    x = torch.ones(2, 4)
    for number in (-1, 3, 2**40):
        with pytest.raises(ValueError, match=f"activation.* got {number}"):
            torch.ops.baraquant._activation(x, None, number)
    with pytest.raises(ValueError, match="up"):
        torch.ops.baraquant._activation(x, None, 0)
    with pytest.raises(ValueError, match="no up"):
        torch.ops.baraquant._activation(x, x, 1)
    with pytest.raises(ValueError, match="no bias"):
        torch.ops.baraquant._norm(x, None, x[0], 1e-5, False)


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.fused.fuzz")
    assert "examples passed" in done.stdout
