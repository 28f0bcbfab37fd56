# SPDX-License-Identifier: BSD-3-Clause
"""The tensors that the observing ops update, beside what the oracle says that they should be."""

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.cases import PER_TENSOR, per_channel
from tests.support.family_cases.range import CLEAN, characterful
from tests.support.oracle.affine import Affine
from tests.support.oracle.range import Observed

SHAPE = (4, 19, 37)
RANGE = (-8, 7)
FLAGS = tuple(itertools.product((1, 0), (1, 0)))  # observer_enabled, fake_quant_enabled


def batches(
    axis: int | None, dtype: torch.dtype, shape: tuple[int, ...] = SHAPE, poison: bool = True
) -> list[Tensor]:
    """Batches of which each channel has another character every time.

    With poison: NaN and infinities come first, in the middle and last, in ever other channels.
    """
    granularity = PER_TENSOR if axis is None else per_channel(axis)
    kinds = ("nan", "inf", "minus_inf", "nan_and_inf") * 2
    first, second, third, last = (
        [kinds[i : i + 1] if axis is None else ("normal", *kinds[i : i + 4])] * poison
        for i in range(4)
    )
    names = [*first, *[CLEAN] * 3, *second, *third, *[CLEAN] * 3, *last]
    made = [
        characterful(shape, dtype, granularity, RANGE, seed=3 * seed, characters=characters)
        for seed, characters in enumerate(names)
    ]
    return [made[0][:0], *made, made[1], made[2][:, :, :0]]


class Buffers:
    """The state that an observer keeps, on a device, and what it should be."""

    def __init__(
        self,
        axis: int | None,
        dtype: torch.dtype,
        device: str,
        size: int | None = None,
        module: Any = torch.ops.baraquant,
    ) -> None:
        self.module = module
        compute = cases.compute_dtype(dtype)
        channels = None if axis is None else (SHAPE[axis] if size is None else size)
        self.axis, self.seen = axis, Observed.nothing(channels, compute)
        shape = () if channels is None else (channels,)
        self.low = torch.full(shape, math.inf, dtype=compute, device=device)
        self.high = torch.full(shape, -math.inf, dtype=compute, device=device)
        self.scale = torch.full(shape, 0.25, dtype=compute, device=device)
        self.point = torch.full(shape, 3, dtype=torch.int32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.low, self.high, self.scale, self.point

    @property
    def granularity(self) -> cases.Granularity:
        return PER_TENSOR if self.axis is None else per_channel(self.axis)

    def assert_range(self, note: str = "") -> None:
        assert_same_bits(self.low, self.seen.low.reshape(self.low.shape), f"min_val {note}")
        assert_same_bits(self.high, self.seen.high.reshape(self.high.shape), f"max_val {note}")
        assert self.skipped.item() == self.seen.skipped, f"skipped {note}"

    def observe(self, x: Tensor, c: float | None = None) -> None:
        result = self.module.observe_min_max_(
            x, self.low, self.high, self.axis, c, skipped_batches=self.skipped
        )
        assert result is None
        self.seen = self.seen.after(x, self.axis, c)

    def step(self, x: Tensor, flags: tuple[Any, Any], symmetric: bool, **options: Any) -> Tensor:
        """One call of observe_fake_quantize."""
        ends = options.pop("ends", RANGE)
        return self.module.observe_fake_quantize(
            x, *self.all, *flags, self.axis, *ends, symmetric=symmetric,
            skipped_batches=self.skipped, **options
        )  # fmt: skip


def flag(value: int, device: str, dtype: torch.dtype = torch.uint8, dims: int = 1) -> Tensor:
    return torch.full((1,) * dims, value, dtype=dtype, device=device)


def expected_step(
    buffers: Buffers, x: Tensor, on: tuple[int, int], ends: tuple[int, int], symmetric: bool,
    c: float | None,
) -> tuple[np.ndarray, np.ndarray, Affine | None]:  # fmt: skip
    """Scale and zero point after the step, and the rule of its output (None: a copy)."""
    scale, point = (to_numpy(t).copy() for t in (buffers.scale, buffers.point))
    if on[0] and x.numel() > 0:
        buffers.seen = buffers.seen.after(x, buffers.axis, c)
        scale, point = buffers.seen.qparams(ends, symmetric, (scale, point))
    if not on[1]:
        return scale, point, None
    params = torch.from_numpy(scale.copy()), torch.from_numpy(point.copy())
    return scale, point, Affine(x, *params, buffers.granularity, *ends)
