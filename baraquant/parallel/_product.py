# SPDX-License-Identifier: BSD-3-Clause
"""The product of a layer whose inputs lie on several processes: each has a part of every sum.

Each process multiplies its integers, and the processes add the int32 sums, which is exact. The
scales, the zero point and the bias come after that, once, as in ``int8_linear``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from .. import ops
from ..ops import backward
from ._gradients import Operands, inside_of_tokens, straight_through
from ._layout import Layout


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
        low, high, scale, zero = self.quant_min, self.quant_max, self.scale, self.zero_point
        if self.granularity == "per_token":
            return ops.quantize_per_token(input, scale, zero, low, high)
        if self.granularity == "per_tensor":
            return ops.quantize_per_tensor(input, scale, zero, low, high)
        return ops.quantize_per_channel(input, scale, self._of_features(zero), -1, low, high)

    def _of_features(self, zero_point: Tensor | None) -> Tensor | None:
        if zero_point is None:
            return None
        return zero_point.reshape(1).expand(self.scale.shape).contiguous()

    def inside(self, input: Tensor) -> Tensor:
        """Return a bool for each number: whether it lies in the range."""
        low, high, scale, zero = self.quant_min, self.quant_max, self.scale, self.zero_point
        if self.granularity == "per_token":
            return inside_of_tokens(input, scale, zero, low, high)
        ones = torch.ones_like(input)
        if self.granularity == "per_tensor":
            kept = backward.fake_quantize_per_tensor_backward(ones, input, scale, zero, low, high)
        else:
            zero = self._of_features(zero)
            kept = backward.fake_quantize_per_channel_backward(
                ones, input, scale, zero, -1, low, high
            )
        return kept != 0


class Product(NamedTuple):
    """What a product of integers on several processes needs besides the tensors.

    Attributes:
        layout: The processes, and the layout of the output.
        dtype: Of the output.
    """

    layout: Layout
    dtype: torch.dtype


def product_of_parts(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    grid: Grid,
    qweight: Tensor,
    weight_scale: Tensor,
    product: Product,
) -> Tensor:
    """Return this process's part of the output, in ``product.layout.output``.

    Args:
        input: Its part ``[..., features of this process]``.
        weight: Its part of the floating weight, which gets the gradient; None: no gradient.
        bias: The whole bias, the same on all processes.
        grid: The integers of the input.
        qweight: The integers of its part of the weight.
        weight_scale: Of each output channel, the same on all processes.
        product: The other arguments.
    """
    qinput = grid.quantize(input.detach())
    needs = torch.is_grad_enabled() and input.requires_grad
    inside = grid.inside(input.detach()) if needs and grid.clips else None
    factor = None
    if grid.granularity == "per_channel":
        factor = grid.product_scale.reshape(()) / grid.scale
    return _Product.apply(
        input,
        weight,
        bias,
        qinput,
        inside,
        factor,
        grid.scale if grid.granularity == "per_token" else grid.product_scale,
        grid.zero_point,
        qweight,
        weight_scale,
        grid.granularity == "per_token",
        product,
    )


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The product, with the gradient of the straight-through estimator."""

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
        product: Product,
    ) -> Tensor:
        ctx.save_for_backward(
            inside, factor, scale, zero_point, qweight, weight_scale,
            qinput if weight is not None and weight.requires_grad else None,
        )  # fmt: skip
        ctx.dtype, ctx.product, ctx.per_token = input.dtype, product, per_token
        ctx.shape = torch.Size([*input.shape[:-1], qweight.shape[0]])
        ctx.bias_dtype = None if bias is None else bias.dtype
        part = ops.int8_product(qinput, qweight, input_zero_point=zero_point)
        if product.layout.is_exact:
            return _exact(part, scale, weight_scale, bias, product)
        return _rounded(part, scale, weight_scale, bias, product)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inside, factor, scale, zero_point, qweight, weight_scale, qinput = ctx.saved_tensors
        layout = ctx.product.layout
        if isinstance(layout.output, Shard):
            grad = layout.gathered(grad.contiguous(), layout.output, ctx.shape)
        found = straight_through(
            grad,
            Operands(qinput, scale, zero_point, qweight, weight_scale, inside),
            ctx.needs_input_grad[:3],
            ctx.dtype,
            ctx.bias_dtype,
            per_token=ctx.per_token,
            factor=factor,
        )
        return *found, *[None] * 9


def _exact(
    part: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, product: Product
) -> Tensor:
    layout = product.layout
    dims, to = part.dim(), layout.output
    sums = layout.sum(part, to)
    if isinstance(to, Shard):
        if layout.splits_channels(dims):
            weight_scale = layout.part_of(weight_scale, Shard(0))
            bias = None if bias is None else layout.part_of(bias, Shard(0))
        elif scale.dim() == dims:
            scale = layout.part_of(scale, to)
    return ops.rescale_product(sums, scale, weight_scale, bias, dtype=product.dtype)


def _rounded(
    part: Tensor, scale: Tensor, weight_scale: Tensor, bias: Tensor | None, product: Product
) -> Tensor:
    """Return the sum of the parts' outputs in bfloat16: half of the bytes, and other bits."""
    layout = product.layout
    numbers = (part.to(weight_scale.dtype) * weight_scale) * scale
    total = layout.sum(numbers.to(torch.bfloat16), layout.output)
    if bias is not None:
        if layout.splits_channels(part.dim()):
            bias = layout.part_of(bias, Shard(0))
        total = total.to(weight_scale.dtype) + bias
    return total.to(product.dtype)


def sum_of_floats(part: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """Return the sum of floating products over the processes, in the layout of the output.

    The parts are added in float32 (``reduce="exact"``; float64 in float64) or in bfloat16, and the
    result is rounded once to the dtype of the parts.
    """
    dtype = torch.promote_types(part.dtype, torch.float32) if layout.is_exact else torch.bfloat16
    whole = DTensor.from_local(part.to(dtype), layout.mesh, [Partial()], run_check=False)
    total = whole.redistribute(layout.mesh, [layout.output]).to_local()
    if bias is not None:
        if layout.splits_channels(part.dim()):
            known = DTensor.from_local(bias, layout.mesh, [Replicate()], run_check=False)
            bias = known.redistribute(layout.mesh, [Shard(0)]).to_local()
        total = total.to(torch.promote_types(part.dtype, torch.float32)) + bias
    return total.to(part.dtype)
