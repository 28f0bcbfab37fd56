# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the fused family: the right exception with the right words, alike on all devices."""

from __future__ import annotations

import pytest
import torch

from tests.support.bad_arguments.fused import OPS, PAIRS, Op
from tests.support.family_cases.wrong_calls import RandomCalls, WrongDtypes


class TestWrongCalls(WrongDtypes, RandomCalls):
    OPS, PAIRS = OPS, PAIRS


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


def test_core_ops_check_their_numbers() -> None:
    x, ops = torch.ones(2, 4), torch.ops.baraquant
    wrong = [(ops._activation, (x, None, n), f"activation.* got {n}") for n in (-1, 3, 2**40)]
    wrong += [(ops._activation, (x, None, 0), "up"), (ops._activation, (x, x, 1), "no up")]
    wrong += [(ops._norm, (x, None, x[0], 1e-5, False), "no bias")]
    for op, arguments, words in wrong:
        with pytest.raises(ValueError, match=words):
            op(*arguments)
