# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family as functions of tensors alone, as those in `affine.py` are."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Shape
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE, integers


@dataclass(frozen=True)
class Int8Call(OpCall):
    """One op with its options; the attributes that are not fields are those of `Call`.

    Attributes:
        verb: The op's name.
        dtype: That of the output, where the scales are float32 and the op has such an argument.
        input: The dtype of an integer input.
        bias: Whether there is one; `shift`: a zero point, or asymmetric; `sums`: weight_sum;
            `smooth`: smooth_scale.
        given: Whether qat_linear gets the integers of the weight.
        range: Of the integers that the input becomes, where it is not that of int8.
        weight_range: Of those of the weight.
    """

    verb: str
    dtype: torch.dtype = torch.float32
    input: torch.dtype = torch.int8
    bias: bool = False
    shift: bool = False
    sums: bool = False
    number: bool = False
    smooth: bool = False
    given: bool = False
    range: tuple[int, int] | None = None
    weight_range: tuple[int, int] | None = None

    granularity = cases.per_channel(0)  # of the weight's scale
    input_alone = True
    exact_gradients = False
    FACETS = ("verb", "input", "bias", "shift", "sums", "number", "given", "range")

    @property
    def facets(self) -> set[tuple[str, Any]]:
        return super().facets | {("dtype of int8", self.dtype)}

    @property
    def static(self) -> bool:
        return self.verb in ("smoothquant_linear", "static_quantized_linear")

    @property
    def integer_input(self) -> bool:
        return self.verb in ("smoothquant_linear", "int8_linear", "int8_product", "rescale_product")

    @property
    def of_sums(self) -> bool:
        return self.verb == "rescale_product"

    @property
    def trained(self) -> bool:
        """Whether the weight is floating."""
        return self.verb == "qat_linear"

    @property
    def differentiable(self) -> bool:
        return not self.integer_input

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors: first those that have a position, then those that have none."""
        found = ["input"] if self.of_sums else ["input", "weight"]
        found += ["input_scale"] if self.verb in ("int8_linear", "rescale_product") else []
        found += [] if self.trained or self.verb == "int8_product" else ["weight_scale"]
        found += ["act_scale"] if self.static and not self.number else []
        found += ["bias"] if self.bias else []
        if self.static and self.shift and not self.number:
            found.append("act_zero_point")
        if self.verb in ("int8_linear", "int8_product") and self.shift:
            found.append("input_zero_point")
        found += ["smooth_scale"] if self.smooth else []
        found += ["qweight", "weight_scale"] if self.given else []
        return (*found, "weight_sum") if self.sums else tuple(found)

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """For an input of `shape`; the weight of a differentiable op is square."""
        gen, k = cases.generator(sum(shape)), shape[-1]
        n = k if self.differentiable or self.of_sums else shape[0] + 3
        compute = cases.compute_dtype(dtype)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=gen, dtype=torch.float64).to(dtype)

        of_rows = () if self.static else (*shape[:-1], 1)
        weight = integers((n, k), torch.int8, "random", 1)
        point = torch.randint(0, 90, of_rows, generator=gen, dtype=torch.int32)
        made = {
            "input": integers(shape, self.input, "random", 2),
            "weight": weight,
            "qweight": weight,
            "input_scale": cases.scales(of_rows, compute, 3),
            "act_scale": cases.scales(of_rows, compute, 3),
            "smooth_scale": cases.scales((k,), compute, 5),
            "weight_scale": cases.scales((n,), compute, 4),
            "bias": 100 * normal(n).to(compute),
            "input_zero_point": point,
            "act_zero_point": point,
            "weight_sum": weight.sum(1, dtype=torch.int32),
        }
        if self.of_sums:
            made["input"] = torch.randint(-(2**26), 2**26, shape, generator=gen, dtype=torch.int32)
        if not self.integer_input:
            made["input"] = normal(*shape) + 0.5
        if self.trained:
            made |= {"weight": normal(n, k), "bias": normal(n)}
        learned = {"input", "bias", *(("weight",) if self.trained else ())}
        learned = learned if self.differentiable else set()
        return tuple(made[n].requires_grad_(n in learned) for n in self.names)

    def arguments(self, *tensors: Tensor) -> Arguments:
        given = dict(zip(self.names, tensors, strict=True))
        named = ["input_zero_point", "act_zero_point", "smooth_scale", "weight_sum", "qweight"]
        named += ["weight_scale"] if self.given else []
        kwargs: dict[str, Any] = {name: given.pop(name) for name in named if name in given}
        if self.number:
            given |= {"act_scale": 0.25}
            kwargs |= {"act_zero_point": 3} if self.shift else {}
        if self.integer_input and "weight_scale" in given:
            scale = given["weight_scale"]
            double = isinstance(scale, Tensor) and scale.dtype == torch.float64
            kwargs["dtype"] = torch.float64 if double else self.dtype
        elif not self.integer_input:
            if not self.static:
                kwargs["symmetric"] = not self.shift
            if self.range is not None:
                kwargs |= dict(zip(INPUT_RANGE, self.range, strict=True))
            if self.weight_range is not None:
                kwargs |= dict(zip(WEIGHT_RANGE, self.weight_range, strict=True))
        bias = given.pop("bias", None)
        return (*given.values(), *(() if bias is None else (bias,))), kwargs


QAT_CALLS = (
    Int8Call("qat_linear", bias=True),
    Int8Call("qat_linear", shift=True),
    Int8Call("qat_linear", bias=True, shift=True, range=(-8, 7), weight_range=(-4, 3)),
    Int8Call("qat_linear", bias=True, shift=True, given=True),
)
SERVED_CALLS = (
    Int8Call("quantized_linear", bias=True),
    Int8Call("quantized_linear", shift=True, sums=True),
    Int8Call("quantized_linear", range=(-8, 7)),
    Int8Call("static_quantized_linear", bias=True),
    Int8Call("static_quantized_linear", shift=True, smooth=True, range=(-100, 27)),
    Int8Call("static_quantized_linear", bias=True, shift=True, sums=True),
)
INT8_CALLS = (
    Int8Call("int8_linear", bias=True),
    Int8Call("int8_linear", torch.bfloat16, torch.uint8, shift=True, sums=True),
    Int8Call("int8_product"),
    Int8Call("int8_product", input=torch.uint8, shift=True, sums=True),
    Int8Call("rescale_product"),
    Int8Call("rescale_product", torch.bfloat16, bias=True),
    Int8Call("smoothquant_linear", torch.float16, bias=True, shift=True),
    Int8Call("smoothquant_linear", torch.float32, torch.uint8, sums=True),
    Int8Call("smoothquant_linear", torch.bfloat16, bias=True, number=True),
    Int8Call("smoothquant_linear", torch.float32, shift=True, sums=True, number=True),
)
