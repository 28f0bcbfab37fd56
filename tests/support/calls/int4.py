# SPDX-License-Identifier: BSD-3-Clause
"""The ops of four-bit weights as functions of tensors alone."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Shape

OUTPUTS, GROUP_SIZE = 9, 4
LINEARS = ("int4_linear", "quantized_int4_linear", "static_quantized_int4_linear")
INTEGERS, DYNAMIC, STATIC = LINEARS
# The tensors of each op, in the order of Int4Call.tensors.
NEEDED = {
    "quantize_int4": ("weight", "scale", "group_factor"),
    "expand_int4": ("packed", "group_factor"),
    INTEGERS: ("input", "packed", "input_scale", "weight_scale", "group_factor"),
    DYNAMIC: ("input", "packed", "weight_scale", "group_factor"),
    STATIC: ("input", "packed", "weight_scale", "group_factor", "act_scale"),
}
OPTIONAL = ("group_zero_point", "bias", "input_zero_point")


@dataclass(frozen=True)
class Int4Call(OpCall):
    """One op; the attributes that are not fields are those of the other families' calls.

    Attributes:
        verb: The op's name.
        full: With all optional arguments: zero points of both kinds, a bias.
    """

    verb: str
    full: bool = False

    @property
    def differentiable(self) -> bool:
        return self.verb in LINEARS[1:]

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """The weight has rows of the shape's last size; an input of a linear op has the shape."""
        random = cases.generator(sum(shape))
        columns, compute = shape[-1], cases.compute_dtype(dtype)

        def bytes_of(low: int, high: int, *sizes: int) -> Tensor:
            return torch.randint(low, high, sizes, dtype=torch.uint8, generator=random)

        def numbers(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=random, dtype=torch.float64)

        rows = OUTPUTS if self.verb in LINEARS else math.prod(shape[:-1])
        groups = math.ceil(columns / GROUP_SIZE)
        if self.verb == "choose_int4_qparams":
            found = [numbers(rows, columns).to(dtype)]
        elif self.verb == "pack_int4":
            found = [bytes_of(0, 16, rows, columns).to(torch.int8) - 8]
        else:
            factor, zero_point = bytes_of(1, 17, rows, groups), bytes_of(0, 16, rows, groups)
            scale = cases.scales((rows,), compute, 3)
            packed = bytes_of(0, 256, rows, (columns + 1) // 2)
            integers = (bytes_of(0, 256, *shape).int() - 128).to(torch.int8)
            made = {
                "weight": numbers(rows, columns).to(dtype),
                "input": integers if self.verb == INTEGERS else numbers(*shape).to(dtype),
                "packed": packed,
                "scale": scale,
                "weight_scale": scale,
                "input_scale": cases.scales(shape[:-1], compute, 4),
                "act_scale": torch.tensor(0.02, dtype=compute),
                "group_factor": factor,
            }
            found = [made[name] for name in NEEDED[self.verb]]
            if self.full:
                found.append(zero_point)
                if self.verb in LINEARS:
                    found.append(numbers(rows).to(compute))
                if self.verb == INTEGERS:
                    found.append(bytes_of(0, 9, *shape[:-1]).int() - 4)
        return tuple(found)

    def arguments(self, *tensors: Tensor) -> Arguments:
        if self.verb == "pack_int4":
            return tensors, {}
        if self.verb == "choose_int4_qparams":
            return (*tensors, GROUP_SIZE), {
                "symmetric": not self.full,
                "bits": 3 if self.full else 4,
            }
        keywords: dict[str, Any] = {"group_size": GROUP_SIZE}
        keywords |= dict(zip((*NEEDED[self.verb], *OPTIONAL), tensors, strict=False))
        if self.verb == "quantize_int4" and self.full:
            keywords["bits"] = 2
        if self.verb == "expand_int4":  # with one column more than the shape if that is odd
            keywords["in_features"] = 2 * tensors[0].shape[1]
        if self.verb == INTEGERS:
            keywords["dtype"] = keywords["weight_scale"].dtype
        if self.verb == DYNAMIC:
            keywords["symmetric"] = not self.full
        return (), keywords


WITH_OPTIONS = ("choose_int4_qparams", "quantize_int4", "expand_int4", *LINEARS)
INT4_CALLS = (
    *(Int4Call(verb, full) for verb in WITH_OPTIONS for full in (False, True)),
    Int4Call("pack_int4"),
)
