# SPDX-License-Identifier: BSD-3-Clause
"""What an adapter cannot do on a quantized layer, with errors that name the layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from ..nn.shared.rotation import rotate_of
from ..workflow.layers import is_converted, is_prepared
from ._floating import layer_kind

# Initial values that PEFT makes by writing into the weight of the layer.
_WRITING = ("pissa", "corda", "olora", "loftq")


def check_layer(path: str, module: nn.Module, config: Any, lora: type[nn.Module] | None) -> None:
    """Check that LoRA of a configuration fits a prepared or converted layer.

    Raises:
        NotImplementedError: PEFT has no LoRA for the kind of layer.
        ValueError: The configuration writes into the weight, or trains what is not a parameter.
    """
    where = f"baraquant.peft: {path}"
    kind = type(module).__name__
    if lora is None:
        raise NotImplementedError(
            f"{where}: expected a layer that PEFT has a LoRA for (linear layers, embeddings, "
            f"convolutions that are not transposed), but got a {kind}; leave it out of "
            "target_modules"
        )
    groups: int = getattr(module, "groups", 1)
    if config.r % groups != 0 and not config.rank_pattern:
        raise ValueError(
            f"{where}: expected a rank that is a multiple of the convolution's {groups} groups, "
            f"but got r={config.r}"
        )
    if is_converted(module):
        _check_writing(where, kind, module, config)
        if config.bias != "none" and getattr(module, "bias", None) is not None:
            raise ValueError(
                f"{where}: expected bias='none', but got {config.bias!r}: the bias of a {kind} is "
                "frozen; lora_bias=True adds one that is trained"
            )
    if is_prepared(module):
        if rotate_of(module) > 0:
            _check_writing(where, kind, module, config, "rotated")
        if module._parameters.get("weight") is None:
            _check_writing(where, kind, module, config, "computed")
        fields = dataclasses.fields(config)
        variants = {f.name for f in fields if f.metadata.get("is_lora_variant")}
        about = {
            "dropout": config.lora_dropout,
            "variants": {name for name in variants if getattr(config, name)} - {"kasa_config"},
            "bias": config.lora_bias,
        }
        check_inside(where, module, about)
    if getattr(config, "kasa_config", None) is not None:
        raise ValueError(
            f"{where}: expected kasa_config=None, but got one: KaSA truncates the weight, and the "
            f"weight of a {kind} is quantized; apply KaSA to the float model"
        )


# The kinds of LoRA that add to the weight and nothing else: PEFT's options, and its classes.
_ADDING = ("use_dora", "Dora", "MiCA")


def check_inside(where: str, module: nn.Module, about: dict[str, Any]) -> None:
    """Check that an adapter can be added to the weight of a prepared layer before it is rounded.

    Args:
        where: The beginning of messages.
        module: The prepared layer.
        about: Of the adapter: the probability ``dropout``, the names of its ``variants``, and
            whether it has a ``bias``.

    Raises:
        NotImplementedError: It is of a kind that no weight can stand for.
        ValueError: It drops inputs, or adds to a bias that the layer has not.
    """
    if about["dropout"] > 0:
        raise ValueError(
            f"{where}: expected lora_dropout=0 for a prepared layer, but got {about['dropout']}: "
            "the adapter is added to the weight before it is rounded, and dropout acts on an "
            "input of the adapter alone, which there is none"
        )
    others = sorted(name for name in about["variants"] if not name.startswith(_ADDING))
    if others:
        raise NotImplementedError(
            f"{where}: expected plain LoRA or DoRA for a prepared layer, but got {others[0]}, "
            "which no sum with the weight can stand for; convert the model first"
        )
    if about["bias"] and getattr(module, "bias", None) is None:
        raise ValueError(
            f"{where}: expected lora_bias=False for a prepared layer without a bias, but got True: "
            "the layer adds no bias"
        )
    groups: int = getattr(module, "groups", 1)
    if groups > 1:
        raise NotImplementedError(
            f"{where}: expected a prepared convolution of one group, but got {groups} groups: "
            "PEFT's adapters connect all groups, and no weight of the layer can; convert the "
            "model first"
        )


def _check_writing(
    where: str, kind: str, module: nn.Module, config: Any, state: str = "quantized"
) -> None:
    init = config.init_lora_weights
    name = init.lower() if isinstance(init, str) else ""
    writes = name.startswith(_WRITING)
    if name == "lora_ga":  # without a gradient PEFT falls back to plain initial values
        writes = hasattr(module, "_peft_loraga_grad")
    if writes:
        raise ValueError(
            f"{where}: expected initial values that leave the weight as it is (True, 'gaussian', "
            f"'orthogonal', 'eva', 'mica'), but got init_lora_weights={init!r}: the weight of a "
            f"{kind} is {state}; initialize on the float model, then quantize it"
        )


def check_model(
    model: nn.Module,
    config: Any,
    is_target: Any,
    lora_class: Callable[[nn.Module], type[nn.Module] | None],
) -> None:
    """Check a whole model before PEFT changes it, by the paths that a configuration targets.

    Raises:
        NotImplementedError: A targeted layer has no adapter of this type.
        ValueError: As in :func:`check_layer`.
    """
    kind = getattr(config, "peft_type", None)
    is_lora = getattr(kind, "value", kind) == "LORA"
    parameters = set(getattr(config, "target_parameters", None) or ())
    tokens = getattr(config, "trainable_token_indices", None)
    for path, module in model.named_modules():
        if not (is_converted(module) or is_prepared(module)):
            continue
        if is_target(path):
            if is_lora:
                check_layer(path, module, config, lora_class(module))
            elif is_converted(module):
                raise NotImplementedError(
                    f"baraquant.peft: {path}: expected a LoRA adapter (LoraConfig), but got "
                    f"{type(config).__name__}: PEFT's other adapters do not know a "
                    f"{type(module).__name__}"
                )
        _check_parameters(path, module, parameters)
        if tokens is not None and is_converted(module) and _holds_tokens(path, model, tokens):
            raise ValueError(
                f"baraquant.peft: {path}: expected a float embedding for trainable_token_indices, "
                f"but got a {type(module).__name__}; keep the embedding floating (a rule that maps "
                "it to None), or train a copy of it with modules_to_save"
            )


def _check_parameters(path: str, module: nn.Module, parameters: set[str]) -> None:
    for name in parameters:
        layer, _, last = name.rpartition(".")
        is_here = layer == path or (layer != "" and path.endswith(f".{layer}"))
        if is_here:
            raise NotImplementedError(
                f"baraquant.peft: {path}: expected target_parameters to name parameters of float "
                f"layers, but got {name!r}, and {last} is quantized ({type(module).__name__}); "
                "name the layer in target_modules, or keep it floating"
            )


def _holds_tokens(path: str, model: Any, tokens: Any) -> bool:
    """Whether trainable tokens are rows of the embedding of this path."""
    module = model.get_submodule(path)
    if isinstance(tokens, dict):
        return any(path == name or path.endswith(f".{name}") for name in tokens)
    find = getattr(model, "get_input_embeddings", None)
    if find is not None:
        return find() is module
    row = layer_kind(module)
    return row is not None and row.float_type is nn.Embedding
