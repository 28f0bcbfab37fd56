# SPDX-License-Identifier: BSD-3-Clause
"""Tied embeddings in a folder whose reader cannot tie integers.

transformers ties ``lm_head.weight`` to the embedding's weight by name, and finds no such parameter
where one of them is quantized; vLLM then ignores the tensors of the output layer. So the folder
holds each of the two, and its ``config.json`` says that they are not tied.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from ..workflow.layers import is_converted


def ends_of(model: nn.Module) -> list[nn.Module]:
    """Return the input and the output embeddings of a model of transformers, as far as it has them.

    The list is empty for other models.
    """
    ends = [_end_of(model, name) for name in ("get_input_embeddings", "get_output_embeddings")]
    return [end for end in ends if end is not None]


def _end_of(model: nn.Module, getter: str) -> nn.Module | None:
    try:
        end = getattr(model, getter)()
    except (AttributeError, NotImplementedError):  # a model without embeddings, or another one
        return None
    return end if isinstance(end, nn.Module) else None


def loses_ties(model: nn.Module) -> bool:
    """Whether the configuration of a model ties embeddings of which one is quantized."""
    config = getattr(model, "config", None)
    is_tied = any(getattr(each, "tie_word_embeddings", False) for each in configs_of(config))
    return is_tied and any(map(is_converted, ends_of(model)))


def computes_ties(model: nn.Module) -> bool:
    """Whether a model computes something else if its configuration does not tie its embeddings.

    T5 of transformers 4 scales the input of its output layer only if they are tied.
    """
    forward = inspect.unwrap(type(model).forward)
    return "tie_word_embeddings" in getattr(getattr(forward, "__code__", None), "co_names", ())


def check_ties(model: nn.Module, caller: str) -> None:
    """Check that a folder in which embeddings are not tied gives the same model.

    Raises:
        ValueError: It gives a model that computes something else.
    """
    if loses_ties(model) and computes_ties(model):
        names = {id(module): path for path, module in model.named_modules()}
        paths = ", ".join(sorted({names[id(end)] for end in ends_of(model)}))
        raise ValueError(
            f"{caller}: {paths}: expected tied embeddings that are floating, but they are "
            f"quantized, so that the folder cannot tie them, and this {type(model).__name__} "
            "computes something else where they are not tied; map them to None, or use "
            "transformers 5"
        )


def head_of(model: nn.Module) -> str | None:
    """Return the path of the layer that gives a language model's logits."""
    head = _end_of(model, "get_output_embeddings")
    return next((path for path, module in model.named_modules() if module is head), None)


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
