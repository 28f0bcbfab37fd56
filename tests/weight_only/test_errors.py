# SPDX-License-Identifier: BSD-3-Clause
"""Bad input to weight_only_linear: the exception and its words, on all devices."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bad_arguments.weight_only import BAD, OPS, PAIRS, K, N, Op
from tests.support.cases import INT64_MAX
from tests.support.checks.bad_calls import BadCallsAndOtherKinds
from tests.support.processes import run_program

by_op = pytest.mark.parametrize("op", OPS, ids=str)


class TestBadCalls(BadCallsAndOtherKinds):
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


def test_a_group_may_be_larger_than_a_row(any_device: str) -> None:
    right = Op().arguments(any_device)
    one = torch.ones(N, 1, device=any_device)
    given = {"weight_scale": one, "weight_zero_point": None}
    for size in (K, K + 1, 2**31, 2**40, INT64_MAX):
        y = ops.weight_only_linear(**right | given | {"group_size": size})
        assert y.shape == (6, N)
        if any_device != "meta":
            plain = {"weight_scale": one.flatten(), "group_size": None}
            assert torch.equal(y, ops.weight_only_linear(**right | given | plain))


def test_arguments_of_other_types() -> None:
    x, w, s = torch.ones(2, 4), torch.ones(3, 4, dtype=torch.int8), torch.ones(3)
    for name, value in {
        "input": 1.0,
        "weight": [[1]],
        "weight_scale": 1.0,
        "bias": 1.0,
        "weight_zero_point": 3,
        "group_size": 2.0,
    }.items():
        arguments: dict[str, Any] = {"input": x, "weight": w, "weight_scale": s, name: value}
        message = rf"^baraquant::weight_only_linear: expected {name} to be of"
        with pytest.raises(TypeError, match=message):
            ops.weight_only_linear(**arguments)
    with pytest.raises(
        ValueError, match="weight_only_linear: expected group_size to fit in 64 bits"
    ):
        ops.weight_only_linear(x, w, s, group_size=2**70)


@by_op
def test_a_scale_that_requires_grad_is_refused(op: Op, device: str) -> None:
    right = op.arguments(device)
    scale = right["weight_scale"].clone().requires_grad_()
    message = r"^baraquant::weight_only_linear: expected weight_scale to be a constant, but got"
    for given in (right, right | {"input": right["input"].clone().requires_grad_()}):
        with pytest.raises(NotImplementedError, match=message):
            op(given | {"weight_scale": scale})
    with torch.no_grad():
        assert torch.equal(op(right | {"weight_scale": scale}), op(right))


@by_op
def test_a_tangent_of_the_scale_is_refused_not_dropped(op: Op, device: str) -> None:
    right = op.arguments(device)
    scale = right["weight_scale"]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(scale, torch.ones_like(scale))
        with pytest.raises(NotImplementedError, match=r"expected weight_scale.* tangent"):
            op(right | {"weight_scale": dual})


@by_op
def test_vmap_over_the_rest_is_refused(op: Op, device: str) -> None:
    right = op.arguments(device)
    for name in ("weight", "weight_scale", "weight_zero_point", "bias"):
        batch = torch.stack([right[name]] * 3)

        def one(value: Tensor, name: str = name) -> Any:
            return op(right | {name: value})

        with pytest.raises(NotImplementedError, match=r"weight_only_linear.*vmap"):
            torch.vmap(one)(batch)


@pytest.mark.process
def test_random_arguments_neither_crash_nor_give_a_wrong_number() -> None:
    """In a process of its own, whose death would be seen; see `fuzz.py`."""
    done = run_program("tests.weight_only.fuzz")
    assert "examples passed" in done.stdout
