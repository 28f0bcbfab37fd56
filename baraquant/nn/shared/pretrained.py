# SPDX-License-Identifier: BSD-3-Clause
"""Refuses ``save_pretrained`` of other packages: nothing could read the file back."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_allowed = ContextVar("_is_allowed", default=False)


@contextmanager
def tensors_to_translate() -> Iterator[None]:
    """Let the tensors be asked for within ``save_pretrained``.

    The caller translates them to a format that ``from_pretrained`` reads.
    """
    token = _is_allowed.set(True)
    try:
        yield
    finally:
        _is_allowed.reset(token)


def refuse_save_pretrained() -> None:
    """Raise an error if ``save_pretrained`` asks a quantized layer for its tensors.

    ``from_pretrained`` would build the float model, not find its weights, ignore the integers, and
    continue with random weights. The model may be a parent of the quantized part, so only the call
    stack shows that ``save_pretrained`` is running. Adapters of peft are saved separately and are
    not refused.
    """
    if _is_allowed.get():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "save_pretrained" and module.endswith("modeling_utils"):
            if getattr(frame.f_locals.get("self"), "_hf_peft_config_loaded", False):
                return
            raise RuntimeError(
                "save_pretrained: expected a floating model, but this one holds integers of "
                "baraquant, which from_pretrained does not read; call "
                "baraquant.export.to_compressed_tensors(model, folder), which it does read, or "
                "baraquant.save(model, path), and baraquant.load_(model, path) on a fresh model"
            )
