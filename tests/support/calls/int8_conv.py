# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers, as a function of tensors alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Shape
from tests.support.family_cases.int8_conv import Case

NAMES = ("input", "weight", "input_scale", "weight_scale", "bias", "input_zero_point", "weight_sum")


@dataclass(frozen=True)
class ConvCall(OpCall):
    """One way to call it; the attributes that are not fields are those of the other calls.

    Attributes:
        full: With all optional arguments.
        depthwise: With one input in each group.
        input: The dtype of the integers.
    """

    full: bool = False
    depthwise: bool = False
    input: torch.dtype = torch.int8

    verb = "int8_conv"

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """Over one to three dimensions of space, whose sizes come from the shape; as in `NAMES`."""
        space = tuple(size % 40 + 3 for size in shape[-3:])
        channels, groups = (4, 4) if self.depthwise else (6, 2)
        sizes = {"images": max(shape[0] % 4, 1), "input": self.input, "dtype": dtype}
        options = {"shift": self.full, "sums": self.full, "bias": "compute" if self.full else ""}
        case = Case(channels, 8, groups, space, (2,) * len(space), **sizes, **options)
        made = case.arguments(sum(shape))
        return tuple(made[name] for name in NAMES if name in made)

    def arguments(self, *tensors: Tensor) -> Arguments:
        names = NAMES if self.full else NAMES[:4]
        given: dict[str, Any] = dict(zip(names, tensors, strict=True))
        given["groups"] = 4 if self.depthwise else 2
        given["dtype"] = given["weight_scale"].dtype
        if self.full:
            given |= {"stride": 2, "padding": 1, "dilation": 1}
        return (), given


CONV_CALLS = (ConvCall(), ConvCall(full=True), ConvCall(True, True, torch.uint8))
