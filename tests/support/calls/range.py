# SPDX-License-Identifier: BSD-3-Clause
"""The ops of the range family as functions of tensors alone, as those in `affine.py` are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Granularity, Shape

RANGE = (-8, 7)


@dataclass(frozen=True)
class RangeCall(OpCall):
    """One op with its granularity; the attributes that are not fields are those of `Call`."""

    verb: str
    granularity: Granularity
    symmetric: bool = True
    dtype: torch.dtype | None = None

    FACETS = ("verb", "granularity", "symmetric", "dtype")

    @property
    def differentiable(self) -> bool:
        return self.verb == "dynamic_fake_quantize"

    @property
    def ranged(self) -> bool:
        return self.dtype != torch.uint8

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        return (skewed(shape).to(dtype).requires_grad_(self.differentiable),)

    @property
    def function(self) -> Callable[..., Any]:
        return self.granularity.op(self.verb, ops)

    def arguments(self, *tensors: Tensor) -> Arguments:
        ends = (0, 15) if self.dtype == torch.uint8 else RANGE
        kwargs = {"symmetric": self.symmetric}
        if self.dtype is not None:
            kwargs["dtype"] = self.dtype
        return (*tensors, *self.granularity.args, *ends), kwargs


def skewed(shape: Shape) -> Tensor:
    """Values of which an asymmetric scale of four bits clips the largest: a tie at both ends.

    From -1.5 to 13.5 the scale is 1, and -1.5 and 13.5 both round up, which is one step too many.
    """
    noise = torch.randn(shape, generator=cases.generator(sum(shape)), dtype=torch.float64)
    ends = torch.tensor([-1.5, 13.5, math.nan, math.nan]).double()
    planted = ends[torch.arange(shape[-1]) % 4].expand(shape)
    return torch.where(planted.isnan(), (2 * noise.exp() - 2.5).clamp(-1.5, 13.5), planted)


CHANNEL, GROUP = cases.per_channel(1), cases.per_group(8)
FAKE_CALLS = tuple(
    RangeCall("dynamic_fake_quantize", g, symmetric)
    for g in cases.KINDS
    for symmetric in (True, False)
)
OTHER_CALLS = (
    RangeCall("choose_qparams", cases.PER_TENSOR),
    RangeCall("choose_qparams", CHANNEL, symmetric=False),
    RangeCall("choose_qparams", cases.PER_TOKEN),
    RangeCall("choose_qparams", GROUP, symmetric=False),
    RangeCall("dynamic_range_quantize", cases.PER_TENSOR, symmetric=False, dtype=torch.int8),
    RangeCall("dynamic_range_quantize", CHANNEL),
    RangeCall("dynamic_range_quantize", cases.PER_TOKEN, symmetric=False, dtype=torch.uint8),
    RangeCall("dynamic_range_quantize", GROUP),
)


@dataclass(frozen=True)
class ObserveCall(OpCall):
    """An op that changes a running range, and how it is switched.

    Attributes:
        axis: That of the channels; None for one range.
        average: The averaging constant.
        observe: Whether `observe_fake_quantize` observes.
        quantize: Whether it quantizes.
    """

    name: str
    axis: int | None = None
    average: float | None = None
    symmetric: bool = True
    observe: bool = True
    quantize: bool = True

    FACETS = ("name", "axis", "average", "symmetric", "observe", "quantize")
    OF = " of observe"

    @property
    def verb(self) -> str:
        return self.name

    @property
    def differentiable(self) -> bool:
        return self.name == "observe_fake_quantize"

    @property
    def overload(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.baraquant, self.name).default

    @property
    def arguments(self) -> Arguments:
        """What follows the tensors."""
        if not self.differentiable:
            return (self.axis, self.average), {}
        kwargs = {"symmetric": self.symmetric, "averaging_constant": self.average}
        return (self.axis, *RANGE), kwargs

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """The input and the state; a range has been seen in some channels, and exceeded."""
        params = () if self.axis is None else (shape[self.axis],)
        compute = cases.compute_dtype(dtype)
        seen = torch.arange(math.prod(params)).reshape(params) % 3 < 2
        state = [torch.where(seen, -0.5, math.inf), torch.where(seen, 0.75, -math.inf)]
        if self.differentiable:
            state += [torch.full(params, 0.1), torch.full(params, 1)]
        x = skewed(shape).to(dtype).requires_grad_(self.differentiable)
        dtypes = (compute, compute, compute, torch.int32)
        given = [t.to(d) for t, d in zip(state, dtypes, strict=False)]
        if self.differentiable:
            given += [torch.tensor(self.observe), torch.tensor([self.quantize], dtype=torch.uint8)]
        return x, *given

    def __call__(self, input: Tensor, *state: Tensor) -> Tensors:
        """The result, if there is one, and the new state; the given one stays as it is."""
        state = tuple(t.clone() for t in state)
        args, kwargs = self.arguments
        result = self.function(input, *state, *args, **kwargs)
        return state if result is None else (result, *state)


OBSERVE_CALLS = (
    ObserveCall("observe_min_max_"),
    ObserveCall("observe_min_max_", axis=1, average=0.25),
    ObserveCall("observe_fake_quantize"),
    ObserveCall("observe_fake_quantize", average=0.25, symmetric=False),
    ObserveCall("observe_fake_quantize", axis=1, symmetric=False),
    ObserveCall("observe_fake_quantize", axis=-1, average=0.25),
    ObserveCall("observe_fake_quantize", axis=1, observe=False),
    ObserveCall("observe_fake_quantize", quantize=False),
)
