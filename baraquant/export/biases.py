# SPDX-License-Identifier: BSD-3-Clause
"""Biases as programs hold them that add them to the sums of integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..nn import FakeQuantize
from ..nn.shared.convolution import ConvolvesIntegers
from ..workflow.layers import is_prepared
from ..workflow.transaction import in_one_transaction, write
from ..workflow.view import check_is_module

_CALLER = "round_biases_"


@in_one_transaction
@torch.no_grad()  # type: ignore[untyped-decorator]
def round_biases_(model: nn.Module) -> list[str]:
    """Round the biases of convolutions of integers as onnxruntime, and others, round them.

    These programs hold a bias as an int32 beside the sums of integers: as a multiple of
    ``input_scale * weight_scale``. After this call the model has such biases, so that it computes
    what these programs compute. Only convolutions whose input has a static scale are changed.

    On a converted model it is called once, before :func:`to_onnx`. On a model from
    :func:`baraquant.qat.prepare_` it is called after steps of the optimizer, when the observers
    are off: each time the biases go to the nearest multiples, and further steps train what remains.

    Args:
        model: A converted or prepared model; its biases are changed in place.

    Returns:
        The paths of the layers whose biases changed.

    Raises:
        TypeError: ``model`` is not a module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3))
        >>> scheme = baraquant.W8A8Static(conv_inputs=True)
        >>> _ = baraquant.quantize_(model, scheme, calibration=[torch.randn(2, 4, 8, 8)])
        >>> baraquant.export.round_biases_(model)
        ['0']
    """
    check_is_module(model, _CALLER)
    changed = []
    for path, module in model.named_modules():
        step = _step_of(module)
        if step is None:
            continue
        bias: Any = module.bias
        rounded = (torch.round(bias.to(step.dtype) / step) * step).to(bias.dtype)
        rounded = torch.where(step.isfinite() & (step > 0), rounded, bias)
        if not torch.equal(rounded, bias):
            write(bias, rounded)
            changed.append(path)
    return changed


def _step_of(module: Any) -> Tensor | None:
    """Return the input's scale times the weight's for a convolution with a bias, or None."""
    if not isinstance(module, ConvolvesIntegers) or getattr(module, "bias", None) is None:
        return None
    rounder = module.input_fake_quant
    is_fixed = isinstance(rounder, FakeQuantize) and not rounder.is_dynamic
    if not is_fixed or rounder.granularity != "per_tensor":
        return None
    scale = module.quantized_weight()[1] if is_prepared(module) else module.weight_scale
    if scale.numel() not in (1, len(module.bias)):
        return None
    return (rounder.scale.reshape(()).to(scale.device) * scale.reshape(-1)).expand(len(module.bias))
