# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers, as a function of tensors alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.calls.call import OpCall
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

    def case(self, shape: tuple[int, ...], dtype: torch.dtype) -> Case:
        """A convolution over one to three dimensions of space, whose sizes come from the shape."""
        space = tuple(size % 40 + 3 for size in shape[-3:])
        channels = 4 if self.depthwise else 6
        return Case(
            channels,
            8,
            4 if self.depthwise else 2,
            space,
            (2,) * len(space),
            images=max(shape[0] % 4, 1),
            input=self.input,
            dtype=dtype,
            shift=self.full,
            sums=self.full,
            bias="compute" if self.full else "",
        )

    def tensors(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> tuple[Tensor, ...]:
        """In the order of `NAMES`, without those that are not given."""
        made = self.case(shape, dtype).arguments(sum(shape))
        return tuple(made[name].to(device) for name in NAMES if name in made)

    def arguments(self, *tensors: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = NAMES if self.full else NAMES[:4]
        given: dict[str, Any] = dict(zip(names, tensors, strict=True))
        given["groups"] = 4 if self.depthwise else 2
        given["dtype"] = given["weight_scale"].dtype
        if self.full:
            given |= {"stride": 2, "padding": 1, "dilation": 1}
        return (), given


CONV_CALLS = (
    ConvCall(),
    ConvCall(full=True),
    ConvCall(full=True, depthwise=True, input=torch.uint8),
)
