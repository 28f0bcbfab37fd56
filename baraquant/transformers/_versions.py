# SPDX-License-Identifier: BSD-3-Clause
"""What differs between transformers 4.57 and 5, and what both leave undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import transformers
from torch import nn
from transformers import modeling_utils

IS_5 = int(transformers.__version__.partition(".")[0]) >= 5

try:
    from transformers.core_model_loading import ConversionOps as ConversionOps
except ImportError:  # transformers 4.57 has no operations on tensors that arrive
    ConversionOps = object


def mark_loaded(module: nn.Module) -> None:
    """Keep transformers from giving initial values to what a quantized layer holds by now."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if not tensor.is_meta:
            tensor._is_hf_initialized = True


def tell_missing(model: Any, tell: Callable[[Iterable[str]], None]) -> None:
    """Let transformers 4.57 tell which tensors will not come from a file, before it makes them.

    These are the missing ones, and those of another shape. It makes them without values, and gives
    values to those that have stayed floating. :func:`stop_telling` takes the change back.
    """
    theirs = getattr(model, _MAKES_MISSING, None)
    if IS_5 or theirs is None:
        return

    def make(missing_keys: list[str], *args: Any, **kwargs: Any) -> None:
        tell(missing_keys)
        theirs(missing_keys, *args, **kwargs)

    vars(model)[_MAKES_MISSING] = make


def ask_for_missing(model: Any, tell: Callable[[Iterable[str]], None]) -> None:
    """Let transformers tell which tensors the files lack, after it has tied what it ties.

    :func:`stop_telling` takes the change back.
    """
    theirs = getattr(model, _ADJUSTS_MISSING, None)
    if theirs is None:
        return

    def adjust(*args: Any, **kwargs: Any) -> Any:
        result = theirs(*args, **kwargs)
        tell(args[0].missing_keys if IS_5 else result[0])
        return result

    vars(model)[_ADJUSTS_MISSING] = adjust


def stop_telling(model: nn.Module) -> None:
    """Take back what :func:`tell_missing` and :func:`ask_for_missing` changed."""
    for name in (_MAKES_MISSING, _ADJUSTS_MISSING):
        vars(model).pop(name, None)


_MAKES_MISSING = "_move_missing_keys_from_meta_to_cpu"
_ADJUSTS_MISSING = "_adjust_missing_and_unexpected_keys"


def cast_scales_of_slots() -> None:
    """Keep transformers 4.57 from casting the tensors of slots to the model's dtype.

    Version 5 asks the quantizer. 4.57 casts each floating tensor of a quantized model, so a float32
    scale would be rounded.
    """
    if IS_5 or hasattr(modeling_utils._infer_parameter_dtype, "_of_baraquant"):
        return
    theirs = modeling_utils._infer_parameter_dtype

    def infer(model: nn.Module, param_name: str, *args: Any, **kwargs: Any) -> Any:
        contiguous, dtype = theirs(model, param_name, *args, **kwargs)
        path, _, leaf = param_name.rpartition(".")
        wanted = getattr(model.get_submodule(path), "wanted", ())
        return contiguous, None if leaf in wanted and leaf != "bias" else dtype

    infer._of_baraquant = True  # type: ignore[attr-defined]
    modeling_utils._infer_parameter_dtype = infer
