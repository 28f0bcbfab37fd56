# SPDX-License-Identifier: BSD-3-Clause
"""Integer gradients whose sums have more terms, or are greater, than one int32 holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.scaled.test_gradients import by_rounding, expected, gradients, leaves, state_of
from tests.support.bits import assert_same_bits
from tests.support.oracle import affine as affine_oracle


@pytest.mark.exhaustive
@pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
@by_rounding
def test_more_tokens_than_a_sum_holds(symmetric: bool, rounding: str, device: str) -> None:
    tokens = 131_100 if symmetric else 65_600
    x, w, b, dy = leaves((tokens,), 2, 3, torch.float32, device)
    dy = dy.sign() + 0.1 * dy.clamp(-3, 3)  # no token outweighs the others
    random = state_of(dy) if rounding == "stochastic" else None
    _, dw, _ = gradients(x, w, b, dy, symmetric=symmetric, backward="int8", rounding=rounding)
    assert_same_bits(dw, expected(x, w, dy, symmetric, random)[1])
    exact = gradients(x, w, b, dy, symmetric=symmetric)[1]
    assert ((dw - exact).double() / deviation(x, dy, symmetric)).abs().max() < 5.5


def deviation(x: Tensor, dy: Tensor, symmetric: bool) -> Tensor:
    """The standard deviation of the weight's gradient [N, K], at most: each token has an error.

    What is rounded is dY * sx, in steps of a hundred-and-twenty-seventh of its greatest of an
    output; a stochastic rounding has a variance of up to a quarter of a step squared.
    """
    rule = ops.choose_qparams_per_token(x.detach(), symmetric=symmetric)
    sx = rule[0].reshape(-1, 1).double()
    q = (
        ops.dynamic_fake_quantize_per_token(x.detach(), symmetric=symmetric).double() / sx
    ).square()
    step = (dy.double() * sx).abs().amax(0) / 127
    return step[:, None] / 2 * q.sum(0).sqrt()


@pytest.mark.exhaustive
@by_rounding
def test_more_outputs_than_a_sum_holds(rounding: str, device: str) -> None:
    """The head of a language model has 151936, for example."""
    x, w, b, dy = leaves((3,), 151_936, 5, torch.bfloat16, device)
    random = state_of(dy) if rounding == "stochastic" else None
    dx, dw, _ = gradients(x, w, b, dy, backward="int8", rounding=rounding)
    wanted = expected(x, w, dy, True, random)
    assert_same_bits(dx, wanted[0])
    assert_same_bits(dw, wanted[1])


def test_the_greatest_sums_are_exact(device: str) -> None:
    """All products have one sign and the greatest magnitude."""
    tokens = 131_071
    x = torch.ones(tokens, 2, device=device, requires_grad=True)
    w = torch.ones(3, 2, device=device, requires_grad=True)
    dy = torch.ones(tokens, 3, device=device)
    dw = torch.autograd.grad(ops.qat_linear(x, w, backward="int8"), w, dy)[0]
    rule = affine_oracle.round_to(np.float32(127 * 127 * tokens), torch.float32)
    scale = np.float32(1) / np.float32(127) / np.float32(127)
    assert dw.unique().tolist() == [float(np.float32(rule) * np.float32(scale))]
