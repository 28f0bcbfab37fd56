# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to the scaled family: the right exception with the right words, on all devices."""

import torch

from baraquant import ops
from tests.support.bad_arguments.scaled import OPS, PAIRS
from tests.support.family_cases.wrong_calls import RandomCalls, WrongCalls


class TestWrongCalls(WrongCalls, RandomCalls):
    OPS, PAIRS = OPS, PAIRS


def test_integers_have_no_gradient() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    for t in (
        *ops.scaled_quantize_per_token(x, torch.ones(4)),
        *ops.scaled_quantize_transposed(x, torch.ones(3, requires_grad=True)),
        ops.draw_random(x),
    ):
        assert not t.requires_grad
