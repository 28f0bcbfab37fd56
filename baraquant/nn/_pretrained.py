# SPDX-License-Identifier: BSD-3-Clause
"""Refuses ``save_pretrained`` of other packages: nothing could read the file back."""

import sys


def refuse_save_pretrained() -> None:
    """Raise an error if ``save_pretrained`` asks a quantized layer for its tensors.

    ``from_pretrained`` would build the float model, not find its weights, ignore the integers, and
    continue with random weights. The model may be a parent of the quantized part, so only the call
    stack shows that ``save_pretrained`` is running. Adapters of peft are saved separately and are
    not refused.

    Raises:
        RuntimeError: A ``save_pretrained`` of a ``modeling_utils`` module is being executed.
    """
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
                "baraquant.save(model, path), and baraquant.load_(model, path) on a fresh model"
            )
