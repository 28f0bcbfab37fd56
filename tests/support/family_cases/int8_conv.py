# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions of integers: their options, and calls of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.cases import Shape

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Case:
    """One convolution. Sizes are those of one dimension of space, or of all."""

    channels: int = 8
    outputs: int = 12
    groups: int = 1
    space: Shape = (9, 11)
    kernel: Shape = (3, 3)
    stride: Shape = (1,)
    padding: Shape = (0,)
    dilation: Shape = (1,)
    images: int | None = 2  # None: no batch
    input: torch.dtype = torch.int8
    dtype: torch.dtype = torch.float64
    shift: bool = False
    sums: bool = False
    bias: str = ""  # "compute" or "output"
    channels_last: bool = False
    values: str = "random"  # or "lowest", "highest"

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """A call, with tensors on the CPU."""
        random = cases.generator(seed)
        compute = cases.compute_dtype(self.dtype)
        batch = () if self.images is None else (self.images,)
        x = integers((*batch, self.channels, *self.space), self.input, self.values, random)
        shape = (self.outputs, self.channels // self.groups, *self.kernel)
        w = integers(shape, torch.int8, self.values, random)
        if self.channels_last and x.dim() in FORMATS and x.dim() == w.dim():
            x = x.contiguous(memory_format=FORMATS[x.dim()])
            w = w.contiguous(memory_format=FORMATS[x.dim()])
        names = ("stride", "padding", "dilation", "groups", "dtype")
        made: dict[str, Any] = {
            "input": x,
            "weight": w,
            "input_scale": cases.scales((), compute, seed + 1),
            "weight_scale": cases.scales((self.outputs,), compute, seed + 2),
            **{name: getattr(self, name) for name in names},
        }
        if self.bias:
            bias = torch.randn(self.outputs, generator=random, dtype=torch.float64) * 100
            made["bias"] = bias.to(compute if self.bias == "compute" else self.dtype)
        if self.shift:
            low, high = cases.default_range(self.input)
            made["input_zero_point"] = torch.randint(low, high + 1, (1,), generator=random)
        if self.sums:
            made["weight_sum"] = w.flatten(1).sum(1, dtype=torch.int32)
        return made


def integers(shape: Shape, dtype: torch.dtype, values: str, random: torch.Generator) -> Tensor:
    """Integers of a dtype: any, or all the same."""
    low, high = cases.default_range(dtype)
    if values != "random":
        return torch.full(shape, low if values == "lowest" else high, dtype=dtype)
    return torch.randint(low, high + 1, shape, generator=random).to(dtype)


def options() -> list[Case]:
    """Every option at least once, over one to three dimensions of space."""
    found = []
    spaces: list[tuple[Shape, Shape]] = [
        ((23,), (3,)), ((9, 11), (3, 3)), ((9, 20), (1, 1)), ((8, 19), (2, 5)),
        ((4, 6, 7), (2, 3, 3)), ((1, 1), (1, 1)), ((3, 40), (3, 1)), ((5, 17, 3), (1, 1, 1)),
    ]  # fmt: skip
    channels = [
        (8, 12, 1), (3, 65, 1), (1, 5, 1), (33, 17, 1), (64, 40, 2), (8, 12, 4), (6, 6, 6),
        (5, 15, 5), (40, 40, 40), (17, 34, 17), (130, 130, 130),
    ]  # fmt: skip
    steps: list[tuple[Shape, Shape, Shape]] = [
        ((1,), (0,), (1,)), ((2,), (1,), (1,)), ((1,), (2,), (2,)), ((3,), (4,), (1,)),
    ]  # fmt: skip
    dtypes = list(cases.FLOAT_DTYPES)
    for space, kernel in spaces:
        for number, (inputs, outputs, groups) in enumerate(channels):
            for stride, padding, dilation in steps:
                n = len(found)
                smallest = min(size + 2 * padding[0] for size in space)
                if smallest < (max(kernel) - 1) * dilation[0] + 1:
                    continue
                found.append(
                    Case(
                        inputs, outputs, groups, space, kernel, stride, padding, dilation,
                        images=(2, 1, None)[n % 3],
                        input=(torch.int8, torch.uint8)[n % 2],
                        dtype=dtypes[n % len(dtypes)],
                        shift=n % 4 < 2,
                        sums=n % 8 < 2,
                        bias=("", "compute", "output")[number % 3],
                        channels_last=n % 5 < 2,
                    )
                )  # fmt: skip
    return found
