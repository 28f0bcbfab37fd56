# SPDX-License-Identifier: BSD-3-Clause
"""The modules that can absorb a factor for each output channel into their parameters."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_NORMS = ("LayerNorm", "RMSNorm")


def producers(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Return norms and linear layers by path, with their numbers of channels.

    Modules that share their parameters, and modules whose hooks may change their output, are left
    out. A norm that is not a PyTorch class counts if its output is proportional to its weight in a
    trial.
    """
    owners = parameter_owners(model)
    found: dict[str, tuple[nn.Module, int]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or path == "" or module._forward_hooks or module._forward_pre_hooks:
            continue
        if weight.numel() == 0:
            continue
        if parametrize.is_parametrized(module) or not weight.is_floating_point():
            continue
        if any(owners[id(p)] > 1 for p in module._parameters.values() if p is not None):
            continue
        is_linear = type(module) is nn.Linear
        is_norm = type(module).__name__.endswith(_NORMS) and weight.dim() == 1
        if is_linear or (is_norm and _follows_weight(module, len(weight))):
            found[path] = module, weight.shape[0]
    return found


def parameter_owners(model: nn.Module) -> Counter[int]:
    """Return how many modules have each parameter, by the parameter's id."""
    return Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )


def fold(producer: nn.Module, smooth: Tensor) -> None:
    """Divide each channel of the output of ``producer`` by its factor, in its parameters."""
    with torch.no_grad():
        for parameter, divided in _divided(producer, smooth):
            parameter.copy_(divided)


def can_fold(producer: nn.Module, smooth: Tensor) -> bool:
    """Return whether the divided parameters are finite in the dtype of the producer."""
    with torch.no_grad():
        return all(
            bool(divided.to(parameter.dtype).isfinite().all())
            for parameter, divided in _divided(producer, smooth)
        )


def _divided(producer: nn.Module, smooth: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with its quotient by the factors, in the dtype of the factors."""
    for name in ("weight", "bias"):
        parameter = getattr(producer, name, None)
        if parameter is not None:
            factors = smooth.to(parameter.device).view(-1, *[1] * (parameter.dim() - 1))
            yield parameter, parameter.to(smooth.dtype) / factors


def _follows_weight(norm: nn.Module, channels: int) -> bool:
    """Return whether dividing the norm's parameters divides its output (not ``1 + weight``)."""
    if set(norm._parameters) - {"weight", "bias"} or norm._modules:
        return False
    weight = norm._parameters["weight"]
    trial = copy.deepcopy(norm).eval()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, channels, generator=generator).to(weight)
    factors = torch.tensor([0.5, 2.0, 4.0]).repeat(channels)[:channels].to(weight)
    try:
        with torch.no_grad():
            before = trial(rows)
            fold(trial, factors)
            after = trial(rows) * factors  # powers of two: no rounding
    except Exception:  # whatever another's code may raise: it is no norm as we know them
        return False
    return bool(torch.allclose(before, after, rtol=1e-3, atol=1e-6)) and bool(before.any())
