# SPDX-License-Identifier: BSD-3-Clause
"""The op of a floating input and a weight of integers, as functions of tensors alone."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Shape
from tests.support.family_cases.int8_mm import integers

OUTPUTS, GROUP_SIZE = 9, 4


@dataclass(frozen=True)
class WeightOnlyCall(OpCall):
    """One way to call it; the attributes that are not fields are those of the other calls.

    Attributes:
        grouped: With a scale for each group, not for each channel.
        full: With all optional arguments: zero points and a bias.
        packed: With two numbers of four bits in a byte.
    """

    grouped: bool = False
    full: bool = False
    packed: bool = False

    verb = "weight_only_linear"
    differentiable = True

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """The input has the shape, the weight rows of its last size."""
        random = cases.generator(sum(shape))
        columns, compute = shape[-1], cases.compute_dtype(dtype)
        params = (OUTPUTS, math.ceil(columns / GROUP_SIZE)) if self.grouped else (OUTPUTS,)
        weight = integers((OUTPUTS, columns), torch.int8, "random", 1)
        found = [
            torch.randn(shape, generator=random, dtype=torch.float64).to(dtype),
            ops.pack_int4(weight) if self.packed else weight,
            cases.scales(params, compute, 3),
        ]
        if self.full:
            found.append(cases.zero_points(params, (-128, 127), 4))
            found.append(torch.randn(OUTPUTS, generator=random, dtype=torch.float64).to(dtype))
        return tuple(found)

    def arguments(self, *tensors: Tensor) -> Arguments:
        names = ("input", "weight", "weight_scale", "weight_zero_point", "bias")
        keywords: dict[str, Any] = dict(zip(names, tensors, strict=False))
        return (), keywords | ({"group_size": GROUP_SIZE} if self.grouped else {})


WEIGHT_ONLY_CALLS = (
    *(WeightOnlyCall(grouped, full) for grouped in (False, True) for full in (False, True)),
    *(WeightOnlyCall(packed=True), WeightOnlyCall(grouped=True, full=True, packed=True)),
)
