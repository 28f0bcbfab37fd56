# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers on several processes: split by their outputs (columns) or by their inputs (rows).

A layer gets one of these classes before its own, in place, as ``fully_shard`` does it: the plan of
``parallelize_module`` replaces no module. Its tensors become DTensors, and it computes with the
parts of this process.

In a layer whose inputs lie on several processes each has a part of every sum. Each process
multiplies its integers, and the processes add the int32 sums, which is exact. The scales, the zero
point and the bias come after that, once, as in ``int8_linear``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard

from .. import ops
from ..nn.shared.fake_quantize import FakeQuantize
from ..nn.shared.product import linear, matching_bias, product_of_integers
from ..nn.training.quantizers import QuantizesWeight
from ..ops import backward
from ._agreed import AgreedFakeQuantize
from ._layout import Layout, local, local_attribute


class Grid(NamedTuple):
    """The integers that an input is rounded to.

    Attributes:
        granularity: ``per_token``, ``per_tensor``, or ``per_channel`` for a scale of each feature.
        scale: In the shape of the granularity, the same on all processes (but for features).
        zero_point: Shaped like the scale; None stands for 0.
        quant_min: The smallest integer.
        quant_max: The largest integer.
        product_scale: The scale of the product: that of a token, or one for all.
        clips: Whether a number may lie outside the range.
    """

    granularity: str
    scale: Tensor
    zero_point: Tensor | None
    quant_min: int
    quant_max: int
    product_scale: Tensor
    clips: bool

    def quantize(self, input: Tensor) -> Tensor:
        """Return int8 integers."""
        return self._call(getattr(ops, f"quantize_{self.granularity}"), input)

    def inside(self, input: Tensor) -> Tensor:
        """Return a bool for each number: whether it lies in the range."""
        op = getattr(backward, f"fake_quantize_{self.granularity}_backward")
        return self._call(op, torch.ones_like(input), input) != 0

    def _call(self, op: Any, *tensors: Tensor) -> Tensor:
        scale, zero = self.scale, self.zero_point
        ends: tuple[int, ...] = self.quant_min, self.quant_max
        if self.granularity == "per_channel":
            if zero is not None:
                zero = zero.reshape(1).expand(scale.shape).contiguous()
            ends = (-1, *ends)
        result: Tensor = op(*tensors, scale, zero, *ends)
        return result


def product_of_parts(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    grid: Grid,
    qweight: Tensor,
    weight_scale: Tensor,
    layout: Layout,
    dtype: torch.dtype,
) -> Tensor:
    """Return this process's part of the output, in ``layout.output``.

    Args:
        input: Its part ``[..., features of this process]``.
        weight: Its part of the floating weight, which gets the gradient; None: no gradient.
        bias: The whole bias, the same on all processes.
        grid: The integers of the input.
        qweight: The integers of its part of the weight.
        weight_scale: Of each output channel, the same on all processes.
        layout: The processes that have parts of each sum, and the layout of the output.
        dtype: Of the output.
    """
    qinput = grid.quantize(input.detach())
    needs = torch.is_grad_enabled() and input.requires_grad
    inside = grid.inside(input.detach()) if needs and grid.clips else None
    factor = None
    if grid.granularity == "per_channel":
        factor = grid.product_scale.reshape(()) / grid.scale
    per_token = grid.granularity == "per_token"
    scale = grid.scale if per_token else grid.product_scale
    of_input, of_weight = (qinput, inside, factor, scale, grid.zero_point), (qweight, weight_scale)
    return _Product.apply(input, weight, bias, *of_input, *of_weight, per_token, layout, dtype)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The product, with the gradient of the straight-through estimator, as ``qat_linear`` has it.

    ``inside`` says which numbers of the input get a gradient; None: all do. ``factor`` multiplies
    the gradient of the input.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        qinput: Tensor,
        inside: Tensor | None,
        factor: Tensor | None,
        scale: Tensor,
        zero_point: Tensor | None,
        qweight: Tensor,
        weight_scale: Tensor,
        per_token: bool,
        layout: Layout,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(
            inside, factor, scale, zero_point, qweight, weight_scale,
            qinput if weight is not None and weight.requires_grad else None,
        )  # fmt: skip
        ctx.dtype, ctx.layout, ctx.per_token = input.dtype, layout, per_token
        ctx.shape = torch.Size([*input.shape[:-1], qweight.shape[0]])
        ctx.weight_dtype = None if weight is None else weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        part = ops.int8_product(qinput, qweight, input_zero_point=zero_point)
        if not layout.is_exact:  # half of the bytes, and other bits
            wide, numbers = weight_scale.dtype, (part.to(weight_scale.dtype) * weight_scale) * scale
            return _summed(numbers.to(torch.bfloat16), bias, layout, wide, dtype)
        sums = layout.sum(part, layout.output)
        if layout.splits_channels(part.dim()):
            weight_scale = layout.part_of(weight_scale, Shard(0))
            bias = None if bias is None else layout.part_of(bias, Shard(0))
        elif isinstance(layout.output, Shard) and scale.dim() == part.dim():
            scale = layout.part_of(scale, layout.output)
        return ops.rescale_product(sums, scale, weight_scale, bias, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inside, factor, scale, zero_point, qweight, weight_scale, qinput = ctx.saved_tensors
        layout, dtype = ctx.layout, ctx.dtype
        if isinstance(layout.output, Shard):
            grad = layout.gathered(grad.contiguous(), layout.output, ctx.shape)
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        dx = dw = db = None
        with torch.autocast(grad.device.type, enabled=False):
            rows = grad.to(dtype)
            if needs_input:
                weight = ops.dequantize_per_channel(qweight, weight_scale, None, 0, dtype=dtype)
                dx = torch.matmul(rows, weight)
                if factor is not None:
                    dx = (dx * factor).to(dtype)
                if inside is not None:
                    dx = torch.where(inside, dx, 0)
            flat = rows.reshape(-1, rows.shape[-1])
            if needs_weight:
                of_tokens, of_all = ops.dequantize_per_token, ops.dequantize_per_tensor
                dequantize = of_tokens if ctx.per_token else of_all
                x = dequantize(qinput, scale, zero_point, dtype=dtype)
                dw = flat.t().mm(x.reshape(flat.shape[0], -1)).to(ctx.weight_dtype)
            if needs_bias:
                db = flat.sum(0, dtype=ctx.bias_dtype)
        return dx, dw, db, *[None] * 10


def _summed(
    part: Tensor, bias: Tensor | None, layout: Layout, wide: torch.dtype, dtype: torch.dtype
) -> Tensor:
    """Return the sum over the processes and the bias, which is added in a wide dtype."""
    total = layout.sum(part, layout.output)
    if bias is not None:
        if layout.splits_channels(part.dim()):
            bias = layout.part_of(bias, Shard(0))
        total = total.to(wide) + bias
    return total.to(dtype)


def sum_of_floats(part: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """Return the sum of floating products over the processes, in the layout of the output.

    The parts are added in float32 (``reduce="exact"``; float64 in float64) or in bfloat16, and the
    result is rounded once to the dtype of the parts.
    """
    wide = torch.promote_types(part.dtype, torch.float32)
    return _summed(
        part.to(wide if layout.is_exact else torch.bfloat16), bias, layout, wide, part.dtype
    )


_WEIGHT: Any = QuantizesWeight.weight


class Parallel:
    """A layer that lies on several processes."""

    _layout: Layout
    _is_on_several_processes = True

    def extra_repr(self) -> str:
        """Return what the layer is, and how it is split, for ``repr``."""
        base: str = super().extra_repr()  # type: ignore[misc]
        return f"{base}, {self._split} over {self._layout.mesh.size()} processes"

    _split = ""


class LocalParameters(Parallel):
    """A prepared layer: its weight and bias, of which this process has parts."""

    def _own_weight(self) -> Tensor:
        return local(super()._own_weight())  # type: ignore[misc]

    def _own_bias(self: Any) -> Tensor | None:
        return local(self._parameters["bias"])

    # The whole parameter, a DTensor, in evaluation too.
    weight = _WEIGHT.getter(lambda self: self._parameters["weight"])


class LocalIntegers(Parallel):
    """A converted layer: its buffers, of which this process has parts."""

    qweight = local_attribute("qweight")
    weight_scale = local_attribute("weight_scale")
    weight_zero_point = local_attribute("weight_zero_point")
    bias = local_attribute("bias")
    smooth = local_attribute("smooth")
    smooth_scale = local_attribute("smooth_scale")


class Columns(Parallel):
    """A layer whose outputs are split: each process has some, and the whole input."""

    _split = "outputs split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the outputs of this process, in the layout that the style says."""
        rows = self._layout.arriving(input, Replicate(), Partial())
        output = super().forward(rows)  # type: ignore[misc]
        return self._layout.leaving(output, Shard(-1), self.out_features)


class Rows(Parallel):
    """A layer whose inputs are split: each process has some, and computes a part of every sum."""

    _split = "inputs split"

    def forward(self: Any, input: Tensor) -> Tensor:
        """Return the output, in the layout that the style says."""
        rows = self._layout.arriving(input, Shard(-1), Shard(-1))
        if self.rotate > 0:  # every block is whole on one process
            rows = ops.hadamard(rows, self.rotate)
        return self._layout.finished(self._summed(rows))


class ColumnsInTraining(Columns, LocalParameters):
    """A prepared linear layer, split by its outputs."""


class ColumnsOfIntegers(Columns, LocalIntegers):
    """A converted linear layer, split by its outputs."""


class RowsInTraining(Rows, LocalParameters):
    """A prepared linear layer, split by its inputs."""

    def _summed(self: Any, input: Tensor) -> Tensor:
        is_integer = self.is_whole and self._is_on() if self.training else self.is_integer
        if is_integer and not self.is_teacher():
            return self._sum_of_integers(input)
        part = linear(self.rounded_input(input), self._rounded_channels_first(), None)
        return sum_of_floats(part, self.bias_to_add(), self._layout)

    def _sum_of_integers(self: Any, input: Tensor) -> Tensor:
        weight, bias = self._channels_first(self.weight_to_round()), self.bias_to_add()
        if self.training:
            input = lowered(input)  # as qat_linear
        qweight, scale, _ = self.quantized_weight()
        bias, grid = matching_bias(bias, input.dtype, scale), _grid(self.input_fake_quant, input)
        return product_of_parts(
            input, weight, bias, grid, qweight, scale, self._layout, input.dtype
        )


class _RowsOfIntegers(Rows, LocalIntegers):
    """A converted layer of integers, split by its inputs."""

    def _sum_of_grid(self: Any, rows: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
        bias, scale = matching_bias(self.bias, dtype, self.weight_scale), self.weight_scale
        return product_of_parts(rows, None, bias, grid, self.qweight, scale, self._layout, dtype)


class RowsOfIntegers(_RowsOfIntegers):
    """A ``QuantizedLinear``, split by its inputs."""

    def _summed(self: Any, input: Tensor) -> Tensor:
        smooth = self.smooth
        rows = input if smooth is None else input / smooth
        return self._sum_of_grid(rows, _grid(self._input_quant, rows), input.dtype)


class RowsOfStaticIntegers(_RowsOfIntegers):
    """A ``StaticQuantizedLinear``, split by its inputs."""

    def _summed(self: Any, input: Tensor) -> Tensor:
        scale, zero_point, smooth_scale = self.act_scale, self.act_zero_point, self.smooth_scale
        scale, zero = scale.reshape(()), None if zero_point is None else zero_point.reshape(())
        given = ("per_tensor", scale) if smooth_scale is None else ("per_channel", smooth_scale)
        grid = Grid(*given, zero, self.quant_min, self.quant_max, scale, clips=True)
        return self._sum_of_grid(input, grid, input.dtype)


class RowsOfWeights(Rows, LocalIntegers):
    """A ``WeightOnlyLinear``, split by its inputs."""

    def _summed(self: Any, input: Tensor) -> Tensor:
        rows = self.input_fake_quant(input)
        part = product_of_integers(self, rows, lambda x, weight, _: linear(x, weight, None))
        return sum_of_floats(part, self.bias, self._layout)


def _grid(quantizer: FakeQuantize, input: Tensor) -> Grid:
    """Return the integers of an input whose processes agree on its range."""
    symmetric = quantizer.symmetric
    if isinstance(quantizer, AgreedFakeQuantize) and quantizer.is_dynamic:
        scale, zero_point = quantizer._qparams_of(input)
    else:
        scale, zero_point = quantizer.scale.reshape(()), quantizer.zero_point.reshape(())
    zero, ends = None if symmetric else zero_point, (quantizer.quant_min, quantizer.quant_max)
    clips = not (symmetric and quantizer.is_dynamic)
    return Grid(quantizer.granularity, scale, zero, *ends, scale, clips)


def lowered(input: Tensor) -> Tensor:
    """Return an input in the dtype of autocast, where that is enabled and casts it."""
    device = input.device.type
    if input.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return input
    return input.to(torch.get_autocast_dtype(device))
