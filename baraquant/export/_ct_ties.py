# SPDX-License-Identifier: BSD-3-Clause
"""Tied embeddings in a folder whose reader cannot tie integers.

transformers ties ``lm_head.weight`` to the embedding's weight by name, and finds no such parameter
where one of them is quantized; vLLM then ignores the tensors of the output layer. So the folder
holds each of the two, and its ``config.json`` says that they are not tied.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..workflow.layers import is_converted


def ends_of(model: nn.Module) -> list[nn.Module]:
    """Return the input and the output embeddings of a model of transformers, as far as it has them.

    The list is empty for other models.
    """
    ends = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        try:
            end = getattr(model, name)()
        except (AttributeError, NotImplementedError):  # a model without embeddings, or another one
            end = None
        if isinstance(end, nn.Module):
            ends.append(end)
    return ends


def loses_ties(model: nn.Module) -> bool:
    """Whether the configuration of a model ties embeddings of which one is quantized."""
    config = getattr(model, "config", None)
    is_tied = any(getattr(each, "tie_word_embeddings", False) for each in configs_of(config))
    return is_tied and any(map(is_converted, ends_of(model)))


def configs_of(config: Any) -> list[Any]:
    """Return a configuration and the one of its text model."""
    text = getattr(config, "get_text_config", lambda: config)()
    return [config] if text is config else [config, text]


def add_copies(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Add a copy of each floating parameter that the tensors hold under another name only."""
    for path, module in model.named_modules(remove_duplicate=False):
        if is_converted(module):
            continue
        for leaf, parameter in module._parameters.items():
            name = f"{path}.{leaf}" if path else leaf
            if parameter is not None and name not in tensors:
                tensors[name] = parameter.detach().cpu().contiguous().clone()
