# SPDX-License-Identifier: BSD-3-Clause
"""``optimize_for_inference_``: what a server does with a model before it calls it."""

from __future__ import annotations

from typing import Any

from torch import nn

from .fused_ops import swap_for_fused
from .merge_linears import merge
from .report import Report
from .transaction import changes_model, undo_by
from .view import check_model

_CALLER = "baraquant.optimize_for_inference_"


@changes_model
def optimize_for_inference_(model: nn.Module, example_inputs: Any = None) -> Report:
    """Make a model ready to be served, in place: everything that costs no accuracy.

    * The model is put into evaluation mode, and its parameters require no gradient.
    * Norms, activations and gated MLPs become those of the fused ops, as by
      :func:`use_fused_ops_`. **Results differ in their last bits** where one was swapped, and
      through integers by more: evaluate the model again.
    * Quantized linear layers that read one input are computed by one call, as by
      :func:`merge_linears_`, which changes no bit.

    Call it after :func:`baraquant.quantize_`, :func:`baraquant.qat.convert_` or
    :func:`baraquant.load_`, and before ``torch.compile`` or an export, with
    :class:`baraquant.graph.Fuse`. A second call changes nothing more. What cannot be swapped or
    merged stays, and it is no error if that is all.

    An error of any kind, also an interrupt, leaves the model unchanged.

    Args:
        model: The model; floating layers are as welcome as quantized ones.
        example_inputs: As for :func:`merge_linears_`.

    Returns:
        A report of what was changed, and of what was left out and why; ``print`` shows it.

    Raises:
        ValueError: The model is wrapped for several processes, or lies on several.
        TypeError: ``model`` is not a module or is scripted.

    Example:
        >>> from torch import nn
        >>> names = "gate_proj", "up_proj"
        >>> model = nn.Sequential(nn.RMSNorm(8), nn.ModuleDict({n: nn.Linear(8, 8) for n in names}))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> print(baraquant.optimize_for_inference_(model))
        0            RMSNorm
        1.gate_proj  one call with up_proj
        1.up_proj    one call with gate_proj
        3 changed, 0 left out
    """
    check_model(model, _CALLER)
    for module in model.modules():
        undo_by(setattr, module, "training", module.training)
    for parameter in model.parameters():
        undo_by(setattr, parameter, "requires_grad", parameter.requires_grad)
    model.eval().requires_grad_(False)
    swapped = swap_for_fused(model, _CALLER)
    merged = merge(model, example_inputs, _CALLER)
    return Report(swapped.changed | merged.changed, swapped.left_out | merged.left_out)
