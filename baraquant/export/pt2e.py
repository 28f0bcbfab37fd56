# SPDX-License-Identifier: BSD-3-Clause
"""Layers in the ops of PyTorch's ``quantized_decomposed`` library, which ExecuTorch recognizes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn import QuantizedLinear
from ..nn.shared.subclassed import plain_type
from ._layers import IntegerLayer, RewrittenLinear, check_layers, integer_layers, rewritten

_CALLER = "to_pt2e_ops"
_OPS_HOME = "torch.ao.quantization.fx._decomposed"


class DecomposedLinear(RewrittenLinear):
    """A ``QuantizedLinear`` with zero points, as XNNPACK's pattern of a dynamic integer product.

    Both are one formula, but these ops multiply by the reciprocal of the scale where ours divide by
    it. So an input beside the border between two integers may become the other one.
    """

    qweight: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor
    smooth: Tensor | None

    def __init__(self, layer: IntegerLayer) -> None:
        super().__init__(layer)
        self.register_buffer("qweight", layer.qweight)
        self.register_buffer("weight_scale", layer.scale)
        zero_point = torch.zeros_like(layer.scale, dtype=torch.int64)
        self.register_buffer("weight_zero_point", zero_point)
        self.register_buffer("smooth", layer.smooth)

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output ``[..., out_features]`` in the dtype of ``input``."""
        ops: Any = torch.ops.quantized_decomposed
        rows = self.rotated(input).float()
        if self.smooth is not None:
            rows = rows / self.smooth
        scale, zero_point = ops.choose_qparams_per_token_asymmetric(rows, torch.int8)
        q = ops.quantize_per_token(rows, scale, zero_point, -128, 127, torch.int8)
        rows = ops.dequantize_per_token(q, scale, zero_point, -128, 127, torch.int8, torch.float32)
        weight = ops.dequantize_per_channel(
            self.qweight, self.weight_scale, self.weight_zero_point, 0, -127, 127, torch.int8
        )
        bias = None if self.bias is None else self.bias.float()
        return F.linear(rows, weight, bias).to(input.dtype)


def to_pt2e_ops(model: nn.Module) -> nn.Module:
    """Return a copy of a model with dynamic integer layers in ``quantized_decomposed`` ops.

    ``torch.export.export`` takes the copy, and ExecuTorch's ``XnnpackPartitioner`` hands the layers
    to XNNPACK, which multiplies integers. XNNPACK has dynamic integer products for 8-bit inputs
    with a scale and a zero point for each token, so the model must come from
    ``W8A8(symmetric=False)``. Floating layers stay as they are. The copy is in evaluation mode and
    shares the tensors of the model.

    Args:
        model: A model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: It has no quantized layer, or one that XNNPACK's pattern cannot hold.
        ImportError: This torch has no ``quantized_decomposed`` ops.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8(symmetric=False), progress=False)
        >>> copy = baraquant.export.to_pt2e_ops(model)
        >>> program = torch.export.export(copy, (torch.ones(2, 8),))
    """
    layers = integer_layers(model, _CALLER)
    check_layers(layers, _CALLER, _why_not)
    try:
        importlib.import_module(_OPS_HOME)  # defines the ops
    except ImportError as error:
        raise ImportError(
            f"{_CALLER}: expected a torch with quantized_decomposed ops ({_OPS_HOME}), but torch "
            f"{torch.__version__} has none; use torch 2.11 to 2.13"
        ) from error
    return rewritten(
        model,
        layers,
        lambda path, module, layer: module if layer is None else DecomposedLinear(layer),
    )


def _why_not(layer: IntegerLayer) -> str | None:
    """Return why XNNPACK's pattern cannot hold a layer, or None."""
    if plain_type(layer.module) is not QuantizedLinear or layer.input is None:
        return (
            "expected a QuantizedLinear, whose input has a dynamic scale, but got a "
            f"{type(layer.module).__name__}; keep it floating (a rule that maps it to None), or "
            "quantize it with W8A8(symmetric=False)"
        )
    input = layer.input
    if input.symmetric:
        return (
            "expected zero points of the input, as XNNPACK computes them, but got a symmetric one; "
            "quantize with W8A8(symmetric=False)"
        )
    if input.granularity != "per_token":
        return f"expected a scale of the input for each token, but got {input.granularity}"
    if input.bits != 8:
        return f"expected 8-bit inputs, but got {input.bits} bits"
    if layer.scale.dtype != torch.float32:
        return f"expected float32 scales, but got {layer.scale.dtype}"
    if bool((layer.qweight == -128).any()):
        return "expected weights in [-127, 127], as XNNPACK's are, but got -128"
    return None
