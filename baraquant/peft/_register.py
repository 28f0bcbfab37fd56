# SPDX-License-Identifier: BSD-3-Clause
"""Tells PEFT about quantized layers, once for a process.

``LoraConfig._register_custom_module`` of PEFT belongs to one configuration, and a configuration
that is read from a file has lost it. So functions of PEFT are wrapped instead: the one that makes a
LoRA layer for a module, the one that finds the targets of ``all-linear``, the one that copies a
module of ``modules_to_save``, the one that counts parameters, and those that merge adapters. Each
wrapper calls PEFT's function and changes its result only where a module is quantized.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import peft
from peft import TaskType, mixed_model, peft_model
from peft.tuners import tuners_utils
from peft.tuners.lora import layer as lora
from peft.tuners.lora import model as lora_model
from peft.utils import other
from peft.utils.constants import INCLUDE_LINEAR_LAYERS_SHORTHAND, SEQ_CLS_HEAD_NAMES
from torch import nn
from transformers import PreTrainedModel

from ..workflow.replace import FOLLOWERS
from ..workflow.transaction import are_kept, in_one_transaction, keep_all, run_to_end, undo_by
from ._checks import check_model
from ._floating import integer_parameters, is_quantized, with_floating_layers
from ._layers import OverQuantized, is_linear, lora_class

_MARK = "_baraquant"


def register() -> None:
    """Wrap PEFT's functions; do nothing if that is done already.

    Raises:
        ImportError: This PEFT does not have them in the form that this module knows.
    """
    _check_version()
    if _follow not in FOLLOWERS:
        FOLLOWERS.append(_follow)
    _wrap(lora_model.LoraModel, "_create_new_module", _create_new_module, is_static=True)
    _wrap(tuners_utils, "_maybe_include_all_linear_layers", _include_all_linear_layers)
    _wrap(other.ModulesToSaveWrapper, "update", _update)
    for name in ("merge_adapter", "unmerge_adapter", "_unload_and_optionally_merge"):
        _wrap(tuners_utils.BaseTuner, name, _merge)
    for model in (peft_model.PeftModel, mixed_model.PeftMixedModel):
        _wrap(model, "get_nb_trainable_parameters", _count)


def _check_version() -> None:
    found = (
        hasattr(lora_model.LoraModel, "_create_new_module")
        and hasattr(tuners_utils, "_maybe_include_all_linear_layers")
        and "config" in inspect.signature(lora.Linear.__init__).parameters
    )
    if not found:
        raise ImportError(
            f"baraquant.peft: expected PEFT 0.21 or a newer one with the same LoRA layers, but got "
            f'{peft.__version__}; install it with: pip install "baraquant[peft]"'
        )


def _wrap(owner: Any, name: str, wrapper: Any, is_static: bool = False) -> None:
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def _create_new_module(
    original: Any, lora_config: Any, adapter_name: str, target: nn.Module, **kwargs: Any
) -> nn.Module:
    base = target
    while isinstance(base, tuners_utils.BaseTunerLayer):
        base = base.get_base_layer()
    kind = lora_class(base) if is_quantized(base) else None
    own = tuple(lora_config._custom_modules or ())
    if kind is None or kwargs.get("parameter_name") is not None or isinstance(base, own):
        made: nn.Module = original(lora_config, adapter_name, target, **kwargs)
        return made
    return kind(target, adapter_name, config=lora_config, **kwargs)


def _follow(model: nn.Module) -> None:
    """Let adapters know which layers of a model were replaced under them."""
    for module in list(model.modules()):
        if not isinstance(module, lora.LoraLayer):
            continue
        base = module.get_base_layer()
        kind = lora_class(base) if is_quantized(base) else None
        if kind is not None and type(module) in kind.__mro__:  # PEFT's own class
            undo_by(setattr, module, "__class__", type(module))
            module.__class__ = kind
        if isinstance(module, OverQuantized):
            module.take_base()


def _include_all_linear_layers(original: Any, config: Any, model: nn.Module) -> Any:
    targets = getattr(config, "target_modules", None)
    is_all = isinstance(targets, str) and targets.lower() == INCLUDE_LINEAR_LAYERS_SHORTHAND
    config = original(config, model)
    if is_all:
        config.target_modules |= _linear_names(model, config)
    check_model(model, config, functools.partial(_is_target, config), lora_class)
    return config


def _is_target(config: Any, path: str) -> bool:
    if getattr(config, "target_modules", None) is None:
        return False
    return bool(tuners_utils.check_target_module_exists(config, path))


def _linear_names(model: Any, config: Any) -> set[str]:
    """Return the quantized linear layers that PEFT would target if they were float."""
    heads: list[nn.Module] = []
    if isinstance(model, PreTrainedModel):
        output = model.get_output_embeddings()
        if output is not None:
            heads = [output]
        elif config.task_type == TaskType.SEQ_CLS:
            found = (getattr(model, name, None) for name in SEQ_CLS_HEAD_NAMES)
            heads = [head for head in found if head is not None][:1]
    adapted = [
        f"{path}." for path, module in model.named_modules()
        if isinstance(module, tuners_utils.BaseTunerLayer)
    ]  # fmt: skip
    return {
        path
        for path, module in model.named_modules()
        if is_linear(module)
        and not any(module is head for head in heads)
        and not path.startswith(tuple(adapted))
    }


def _update(original: Any, self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> None:
    is_new = adapter_name not in self.modules_to_save
    original(self, adapter_name, *args, **kwargs)
    if is_new:
        copied = self.modules_to_save[adapter_name]
        trains = any(parameter.requires_grad for parameter in copied.parameters())
        replaced = with_floating_layers(copied)
        replaced.requires_grad_(trains)
        self.modules_to_save[adapter_name] = replaced


@in_one_transaction
def _merge(original: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Change all quantized layers of a model, or none; PEFT's own change one after the other.

    If they take much memory, each of them changes as a whole, and frees what it was.
    """
    layers = filter(is_quantized, self.modules())
    if not are_kept(t for layer in layers for t in (*layer.parameters(), *layer.buffers())):
        run_to_end()
    keep_all(self)
    return original(self, *args, **kwargs)


def _count(original: Any, self: nn.Module) -> tuple[int, int]:
    trainable, total = original(self)
    return trainable, total + integer_parameters(self)
