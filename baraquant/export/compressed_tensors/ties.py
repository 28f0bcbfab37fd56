# SPDX-License-Identifier: BSD-3-Clause
"""Tied embeddings in a folder whose reader cannot tie integers.

transformers ties ``lm_head.weight`` to the embedding's weight by name, and finds no such parameter
where one of them is quantized; vLLM then ignores the tensors of the output layer. So the folder
holds each of the two, and its ``config.json`` says that they are not tied. So it is where the model
has other values in each, against its configuration.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...workflow.layers import is_converted


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
    """Whether the configuration ties embeddings that are quantized or not tied in the model."""
    if not _says_tied(model):
        return False
    ends = ends_of(model)
    weights = {id(getattr(end, "weight", None)) for end in ends}
    return any(map(is_converted, ends)) or len(weights) > 1


def _says_tied(model: nn.Module) -> bool:
    configs = configs_of(getattr(model, "config", None))
    return any(getattr(config, "tie_word_embeddings", False) for config in configs)


def computes_ties(model: nn.Module) -> bool:
    """Whether a model computes something else if its configuration does not tie its embeddings.

    T5 of transformers 4 scales the input of its output layer only if they are tied.
    """
    forward = inspect.unwrap(type(model).forward)
    return "tie_word_embeddings" in getattr(getattr(forward, "__code__", None), "co_names", ())


def check_ties(model: nn.Module, caller: str) -> None:
    """Check that a folder in which embeddings are not tied gives the same model."""
    if loses_ties(model) and computes_ties(model):
        names = {id(module): path for path, module in model.named_modules()}
        paths = ", ".join(sorted({names[id(end)] for end in ends_of(model)}))
        raise ValueError(
            f"{caller}: {paths}: expected tied embeddings that are floating, but they are "
            f"quantized or not tied, so that the folder cannot tie them, and this "
            f"{type(model).__name__} computes something else where they are not tied; map them to "
            "None and tie them, or use transformers 5"
        )


def head_of(model: nn.Module) -> str | None:
    """Return the path of the layer that gives a language model's logits."""
    head = _end_of(model, "get_output_embeddings")
    return next((path for path, module in model.named_modules() if module is head), None)


def configs_of(config: Any) -> list[Any]:
    """Return a configuration and the one of its text model."""
    text = getattr(config, "get_text_config", lambda: config)()
    return [config] if text is config else [config, text]


def tensors_outside(model: nn.Module, is_inside: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors outside of quantized layers, by the names under which a reader wants them.

    A tied weight is there under each name, unless the model's class ties it when it is loaded: a
    reader may have a model in which it is not tied. A module with several names is there once.
    """
    again = set() if loses_ties(model) else _tied_by_class(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    tensors: dict[str, Tensor] = {}
    later: dict[str, Tensor] = {}
    done: set[tuple[Any, str]] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        slot = id(modules[path]) if path in modules else path, leaf
        if is_inside(name) or slot in done:
            continue
        done.add(slot)
        (later if name in again else tensors)[name] = tensor
    written = {id(tensor) for tensor in tensors.values()}
    return tensors | {name: one for name, one in later.items() if id(one) not in written}


def _tied_by_class(model: nn.Module) -> set[str]:
    """Return the names of tensors to which transformers assigns other ones after loading."""
    named = getattr(model, "all_tied_weights_keys", None)
    if named is not None:
        return set(named)
    if not _says_tied(model):
        return set()
    patterns = getattr(model, "_tied_weights_keys", None) or ()  # transformers 4.57
    return {name for name in model.state_dict() if any(re.search(one, name) for one in patterns)}
