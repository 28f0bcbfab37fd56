# SPDX-License-Identifier: BSD-3-Clause
"""Builds and runs tiny models of the architectures of transformers, with random weights.

The table of models is in `models.py`.
"""

from typing import Any

import torch
from torch import nn

from tests.support.tiny_transformers.models import TINY, Inputs, Tiny


def build(name: str, seed: int = 0) -> nn.Module:
    """The model in evaluation. On the meta device, under `torch.device("meta")`."""
    return construct(TINY[name], seed)


def construct(tiny: Tiny, seed: int = 0) -> nn.Module:
    """The model of a configuration, in evaluation."""
    import transformers

    nested: dict[str, Any] = {
        key: getattr(transformers, config)(**sizes) for key, (config, sizes) in tiny.nested.items()
    }
    for key in nested.keys() & {"text_config", "vision_config"}:
        nested[key] = nested[key].to_dict()  # transformers 4 takes these as dictionaries alone
    config = getattr(transformers, tiny.config)(**tiny.sizes, **nested)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model: nn.Module = getattr(transformers, tiny.model)(config)
    return model.eval()


def liven(model: nn.Module) -> nn.Module:
    """Weights as large as those of trained models: each layer keeps the size of its input.

    The usual initial weights are so small that a residual path hides what layers compute.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.std() > 0:
                fan_in = parameter[0].numel()
                parameter *= fan_in**-0.5 / parameter.std()
    return model


def tensors(output: Any) -> list[torch.Tensor]:
    """All floating tensors of an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [t for value in output.values() for t in tensors(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in tensors(value)]
    return []


def outputs(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """What the model makes of the inputs; its own random numbers are the same in every call."""
    torch.manual_seed(1)
    with torch.no_grad():
        return tensors(model(**inputs))


def relative_error(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative error of the outputs, each measured by its own norm."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        if b.norm() > 0:
            worst = max(worst, float((a.double() - b.double()).norm() / b.double().norm()))
    return worst
