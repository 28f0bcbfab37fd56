# SPDX-License-Identifier: BSD-3-Clause
"""The ops of four-bit weights as functions of tensors alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baraquant import ops
from tests.support import cases

OUTPUTS, GROUP_SIZE = 9, 4
LINEARS = ("int4_linear", "quantized_int4_linear", "static_quantized_int4_linear")


@dataclass(frozen=True)
class Int4Call:
    """One op; the attributes that are not fields are those of the other families' calls.

    Attributes:
        verb: The op's name.
        full: With all optional arguments: zero points of both kinds, a bias.
    """

    verb: str
    full: bool = False

    number = False

    def __str__(self) -> str:
        return self.verb + ("-full" if self.full else "")

    @property
    def differentiable(self) -> bool:
        return self.verb in LINEARS[1:]

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(ops, self.verb)

    def tensors(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> tuple[Tensor, ...]:
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
            found = {
                "quantize_int4": [numbers(rows, columns).to(dtype), scale, factor],
                "expand_int4": [packed, factor],
                "int4_linear": [
                    (bytes_of(0, 256, *shape).int() - 128).to(torch.int8),
                    packed,
                    cases.scales(shape[:-1], compute, 4),
                    scale,
                    factor,
                ],
                "quantized_int4_linear": [numbers(*shape).to(dtype), packed, scale, factor],
                "static_quantized_int4_linear": [
                    numbers(*shape).to(dtype),
                    packed,
                    scale,
                    factor,
                    torch.tensor(0.02, dtype=compute),
                ],
            }[self.verb]
            if self.full:
                found.append(zero_point)
                if self.verb in LINEARS:
                    found.append(numbers(rows).to(compute))
                if self.verb == "int4_linear":
                    found.append(bytes_of(0, 9, *shape[:-1]).int() - 4)
        return tuple(t.to(device) for t in found)

    def arguments(self, *tensors: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.verb == "choose_int4_qparams":
            return (*tensors, GROUP_SIZE), {"symmetric": not self.full}
        if self.verb == "pack_int4":
            return tensors, {}
        keywords: dict[str, Any] = {"group_size": GROUP_SIZE}
        if self.verb == "expand_int4":
            keywords["in_features"] = self.columns(tensors)
        count = {"quantize_int4": 3, "expand_int4": 2, LINEARS[0]: 5, LINEARS[1]: 4, LINEARS[2]: 5}
        needed = count[self.verb]
        rest = iter(tensors[needed:])
        for name in ("group_zero_point", "bias", "input_zero_point") if self.full else ():
            if (value := next(rest, None)) is not None:
                keywords[name] = value
        if self.verb == LINEARS[0]:
            keywords["dtype"] = tensors[2].dtype
        if self.verb == LINEARS[1]:
            keywords["symmetric"] = not self.full
        names = [a.name for a in getattr(torch.ops.baraquant, self.verb).default._schema.arguments]
        names.remove("group_size")
        given = dict(zip(names, tensors[:needed], strict=False))
        if self.verb == "quantize_int4" or self.verb == "expand_int4" or self.verb in LINEARS:
            keywords |= given
        return (), keywords

    def columns(self, tensors: tuple[Tensor, ...]) -> int:
        """The columns of the packed weight that `tensors` made; it tells no odd number apart."""
        return 2 * tensors[0].shape[1]

    def __call__(self, *tensors: Tensor) -> Any:
        args, kwargs = self.arguments(*tensors)
        return self.function(*args, **kwargs)


INT4_CALLS = tuple(
    Int4Call(verb, full)
    for verb in ("choose_int4_qparams", "quantize_int4", "expand_int4", *LINEARS)
    for full in (False, True)
) + (Int4Call("pack_int4"),)
