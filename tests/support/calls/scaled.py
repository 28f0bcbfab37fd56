# SPDX-License-Identifier: BSD-3-Clause
"""The scaled family, and qat_linear with a backward of integers, as functions of tensors alone.

`draw_random` is none: each call of it gives something else.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.calls.int8_mm import Int8Call
from tests.support.cases import Shape
from tests.support.family_cases.int8_mm import integers


@dataclass(frozen=True)
class ScaledCall(OpCall):
    """One op; `random`: with a state for stochastic rounding."""

    verb: str
    random: bool = False

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        rng = cases.generator(sum(shape))
        if self.verb == "transpose_int8":
            rows = math.prod(shape[:-1])
            return (integers((rows, shape[-1]), torch.int8, "random", 1),)
        x = torch.randn(shape, generator=rng, dtype=torch.float64)
        of_rows = self.verb == "scaled_quantize_transposed"
        compute = cases.compute_dtype(dtype)
        factor = cases.scales(shape[:-1] if of_rows else shape[-1:], compute, 3)
        random = [torch.tensor([sum(shape), 2**40])] if self.random else []
        return x.to(dtype), factor, *random

    def arguments(self, *tensors: Tensor) -> Arguments:
        if not self.random:
            return tensors, {}
        return tensors[:-1], {"random": tensors[-1]}


@dataclass(frozen=True)
class IntegerQatCall(Int8Call):
    """qat_linear; `backward` is not "float"."""

    backward: str = "int8"

    def arguments(self, *tensors: Tensor) -> Arguments:
        args, kwargs = super().arguments(*tensors)
        return args, kwargs | {"backward": self.backward}


SCALED_CALLS = (
    *(ScaledCall("scaled_quantize_per_token", random) for random in (False, True)),
    *(ScaledCall("scaled_quantize_transposed", random) for random in (False, True)),
    ScaledCall("transpose_int8"),
)
INTEGER_QAT_CALLS = (
    IntegerQatCall("qat_linear", bias=True),
    IntegerQatCall("qat_linear", shift=True),
    IntegerQatCall("qat_linear", backward="int8_input"),
)
