# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to weight_only_linear: the exception and its words, on all devices."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.bad_arguments.weight_only import BAD, OPS, PAIRS, Op
from tests.support.family_cases.wrong_calls import RandomCalls, WrongCalls

by_op = pytest.mark.parametrize("op", OPS, ids=str)


class TestWrongCalls(WrongCalls, RandomCalls):
    OPS, PAIRS = OPS, PAIRS


@by_op
def test_recorded_calls_say_the_same(op: Op, device: str) -> None:
    """Calls of which autograd keeps a node."""
    for bad in BAD:
        if not bad.applies(op) or bad.argument in ("input", "bias"):
            continue
        message, _ = bad.call(op, device)
        right = op.arguments(device)
        arguments = right | {bad.argument: bad.change(right)}
        for leaf in ("input", "bias"):
            recorded = arguments | {leaf: right[leaf].requires_grad_()}
            with pytest.raises(bad.error, match=f"^{re.escape(message)}$"):
                op(recorded)


@by_op
def test_a_scale_that_requires_grad_or_has_a_tangent_is_refused(op: Op, device: str) -> None:
    right = op.arguments(device)
    scale = right["weight_scale"].clone().requires_grad_()
    message = r"^baraquant::weight_only_linear: expected weight_scale to be a constant, but got"
    for given in (right, right | {"input": right["input"].clone().requires_grad_()}):
        with pytest.raises(NotImplementedError, match=message):
            op(given | {"weight_scale": scale})
    with torch.no_grad():
        assert torch.equal(op(right | {"weight_scale": scale}), op(right))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(scale.detach(), torch.ones_like(scale))
        with pytest.raises(NotImplementedError, match=r"expected weight_scale.* tangent"):
            op(right | {"weight_scale": dual})
