# SPDX-License-Identifier: BSD-3-Clause
"""A loss that keeps weights from oscillating between two integers."""

import torch
from torch import Tensor, nn

from ..nn import QuantizesWeight
from ..nn.shared.precision import wide
from ..workflow.view import check_is_module


def dampening_loss(model: nn.Module) -> Tensor:
    """Return how far the weights of a prepared model are from what they are rounded to.

    ``mean(sum((w - w^)^2) / sum(w^2))`` over the layers, where ``w^`` is the rounded weight, which
    has no gradient. So each weight is pulled to the middle of its cell. A weight near the border of
    two cells would otherwise change its integer again and again ("Overcoming Oscillations in
    Quantization-Aware Training", Nagel et al. 2022; they leave out weights beyond the grid, and sum
    the squares, so that their factor depends on the size of the model). Add it with a factor that
    rises from 0 during the training: a weight that is held from the first step on learns nothing.

    Args:
        model: A model prepared by :func:`prepare_`, or a module within one. Adapters are a part of
            the weights; experts have no part in the loss.

    Returns:
        A scalar, float32 (float64 where the first layer is).

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: It has no prepared layer, or one has no scales yet (see :func:`prepare_`).

    Example:
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> layer.weight.data = torch.tensor([[7.0, 1.5]])
        >>> model = torch.nn.Sequential(layer)
        >>> report = baraquant.qat.prepare_(model, baraquant.W4A16(None, scale_rule="max"))
        >>> baraquant.qat.dampening_loss(model)  # 0.5^2 / (7^2 + 1.5^2)
        tensor(0.0049, grad_fn=<MeanBackward0>)
    """
    check_is_module(model, "baraquant.qat.dampening_loss")
    errors = []
    for layer in model.modules():
        if not isinstance(layer, QuantizesWeight):
            continue
        error = wide(layer.rounding_error()).square().sum()
        total = wide(layer.rows_of_weight()).square().sum()
        errors.append(error / total.clamp_min(torch.finfo(total.dtype).tiny))
    if not errors:
        raise ValueError(
            "baraquant.qat.dampening_loss: expected a model prepared by baraquant.qat.prepare_, "
            f"but {type(model).__name__} has no prepared layer"
        )
    return torch.stack([error.to(errors[0]) for error in errors]).mean()
