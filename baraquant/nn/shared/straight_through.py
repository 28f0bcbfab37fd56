# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of an integer product: integers themselves have no gradient.

Eager layers compute the floating formula only where a gradient is asked for. A traced or exported
graph must not hold that decision: it is called with and without gradients, wherever it was made.
There ``linear_through``, ``conv_through`` and ``experts_through`` decide at each call.
A trace calls them as functions of TorchScript, an exported program as ops of ``baraquant_nn`` with
these names. ``run_decompositions``, and so AOTInductor, replaces these ops by what they compute
without a gradient, which costs nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import ops
from ..._library import of_python_ops
from .product import linear


def _without_gradient(tensor: Tensor) -> Tensor:
    # torch.jit.freeze removes `detach`, with its effect on gradients, but not this.
    return tensor.data if torch.jit.is_scripting() else tensor.detach()


# Return a tensor without its gradient, also in a graph that torch.jit.freeze changes.
without_gradient = torch.jit.script_if_tracing(_without_gradient)


def straight_through(output: Tensor, smooth: Tensor) -> Tensor:
    """Return ``output`` with the gradient of ``smooth``, the same formula in floating point.

    The function subtracts a 0 that carries the gradient. This 0 is +0.0, which keeps the sign of
    -0.0, and it stays 0 if the formula overflows.
    """
    return output - (without_gradient(smooth) - smooth).nan_to_num(0.0).to(output.dtype)


def makes_graph() -> bool:
    """Whether a graph is made that will be called with and without gradients."""
    if torch.jit.is_scripting():  # its code decides at each call, as eager code does
        return False
    # In PyTorch 2.11 torch.compiler.is_exporting() is true for torch.compile as well.
    return bool(torch.jit.is_tracing() or torch.compiler._is_exporting_flag)


def _asks_for_gradient(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    trains = input.requires_grad or weight.requires_grad
    if bias is not None:
        trains = trains or bias.requires_grad
    asks: bool = torch.is_grad_enabled() and trains
    return asks


def _linear_through(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if _asks_for_gradient(input, weight, bias):
        output = straight_through(output, linear(input, weight, bias))
    return output


def _conv_through(
    output: Tensor,
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor | None,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return ``output`` with the gradient of a convolution if one is asked for at the call.

    Input and weight are rounded; the weight is int8 with ``weight_scale``, ``[out_channels]``.
    """
    if _asks_for_gradient(input, weight, bias):
        if weight_scale is not None:
            weight = ops.dequantize_per_channel(weight, weight_scale, None, 0, dtype=input.dtype)
            weight = weight.contiguous()
        if bias is not None:
            bias = bias.to(input.dtype)
        if weight.dim() == 3:
            smooth = F.conv1d(input, weight, bias, stride, padding, dilation, groups)
        elif weight.dim() == 4:
            smooth = F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        else:
            smooth = F.conv3d(input, weight, bias, stride, padding, dilation, groups)
        output = straight_through(output, smooth)
    return output


def _experts_through(
    output: Tensor,
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor | None,
    offsets: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return ``output`` ``[rows, N]`` with the gradient of experts if one is asked for at the call.

    The input is ``[rows, K]``, sorted by expert, and the weight ``[E, N, K]``. Both are rounded;
    the weight is int8 with ``weight_scale``, ``[E, N]``. The bias is ``[E, N]``.
    """
    if _asks_for_gradient(input, weight, bias):
        if weight_scale is not None:
            rows = weight.flatten(0, 1), weight_scale.flatten()
            flat = ops.dequantize_per_channel(rows[0], rows[1], None, 0, dtype=input.dtype)
            weight = flat.view(weight.shape)
        ends: list[int] = offsets.long().tolist()  # TorchScript converts int64 alone
        parts: list[Tensor] = []
        start = 0
        for expert, end in enumerate(ends):
            row = None if bias is None else bias[expert]
            parts.append(F.linear(input[start:end], weight[expert].clone(), row))
            start = end
        parts.append(output.new_zeros([input.shape[0] - start, output.shape[1]]))
        output = straight_through(output, torch.cat(parts))
    return output


def _exported_experts_through(output: Tensor, *args: Any) -> Tensor:
    if torch.compiler._is_exporting_flag:  # the offsets have no values yet
        return output
    return _experts_through(output, *args)


_LIBRARY = of_python_ops(__name__, "baraquant_nn")
_LIBRARY.define(
    "linear_through(Tensor output, Tensor input, Tensor weight, Tensor? bias) -> Tensor"
)
_LIBRARY.define(
    "conv_through(Tensor output, Tensor input, Tensor weight, Tensor? weight_scale, Tensor? bias, "
    "int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
)
_LIBRARY.define(
    "experts_through(Tensor output, Tensor input, Tensor weight, Tensor? weight_scale, "
    "Tensor offsets, Tensor? bias) -> Tensor"
)
_LIBRARY.impl("linear_through", _linear_through, "CompositeImplicitAutograd")
_LIBRARY.impl("conv_through", _conv_through, "CompositeImplicitAutograd")
_LIBRARY.impl("experts_through", _exported_experts_through, "CompositeImplicitAutograd")
_traced_linear_through = torch.jit.script_if_tracing(_linear_through)


@torch.jit.unused  # type: ignore[untyped-decorator]
def linear_through(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``output`` with the gradient of a linear layer if one is asked for at the call."""
    if torch.jit.is_tracing():
        return _traced_linear_through(output, input, weight, bias)
    return torch.ops.baraquant_nn.linear_through(output, input, weight, bias)


def _in_graph(name: str, traced: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function that decides at each call of a graph: traced, or an op in a program."""

    def through(*args: Any) -> Tensor:
        if torch.jit.is_tracing():
            return traced(*args)
        output: Tensor = getattr(torch.ops.baraquant_nn, name)(*args)
        return output

    return through


# The arguments are those of the functions above.
conv_through = _in_graph("conv_through", torch.jit.script_if_tracing(_conv_through))
experts_through = _in_graph("experts_through", torch.jit.script_if_tracing(_experts_through))
