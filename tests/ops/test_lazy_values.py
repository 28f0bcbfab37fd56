# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that negate, conjugate or stand for zeros: read right, and never written.

PyTorch's own fallback reads beyond its stack for an op that writes such a tensor and returns
nothing, as the observers do.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.calls.range import OBSERVE_CALLS, ObserveCall

WRITTEN = ("min_val", "max_val", "scale", "zero_point")
LAZY: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda t: torch._neg_view(-t),
    "imaginary": lambda t: torch.complex(t, -t).conj().imag,
    "conjugate": lambda t: torch.complex(t, t).conj(),
    "zeros": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
}
by_call = pytest.mark.parametrize("call", OBSERVE_CALLS, ids=str)


def arguments(call: ObserveCall, device: str) -> tuple[list[Tensor], tuple[Any, ...], Any]:
    tensors = [t.detach() for t in call.tensors((3, 4, 8), device=device)]
    args, kwargs = call.arguments
    return tensors, args, kwargs


@by_call
@pytest.mark.parametrize("kind", LAZY)
def test_what_is_written_holds_its_values(call: ObserveCall, kind: str, device: str) -> None:
    for index, name in enumerate(WRITTEN[: 4 if call.differentiable else 2], 1):
        tensors, args, kwargs = arguments(call, device)
        if tensors[index].dtype == torch.int32 and kind != "zeros":
            continue  # integers have neither
        tensors[index] = LAZY[kind](tensors[index])
        for _ in range(3):  # what reads beyond a stack may go well once
            with pytest.raises(TypeError, match=rf"^baraquant::{call.name}: expected {name} to "):
                call.function(*tensors, *args, **kwargs)


@by_call
@pytest.mark.parametrize("kind", ("negative", "imaginary", "zeros"))
def test_what_is_read_need_not(call: ObserveCall, kind: str, device: str) -> None:
    tensors, _, _ = arguments(call, device)
    lazy = LAZY[kind](tensors[0])
    got, expected = call(lazy, *tensors[1:]), call(lazy.clone().contiguous(), *tensors[1:])
    assert all(map(torch.equal, got, expected))


def test_the_core_op_refuses_too(device: str) -> None:
    x, low, high = (torch.ones(n, device=device) for n in (3, 1, 1))
    core = torch.ops.baraquant._observe_min_max_
    rest = [None] * (len(core.default._schema.arguments) - 3)
    for make in LAZY.values():
        for _ in range(3):
            with pytest.raises(TypeError, match="expected max_val to hold its values"):
                core(x, low, make(high), *rest)
