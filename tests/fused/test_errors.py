# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the fused family: the right exception with the right words, alike on all devices."""

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
