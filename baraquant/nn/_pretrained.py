# SPDX-License-Identifier: BSD-3-Clause
"""``save_pretrained`` of other packages, which writes integers that nothing reads back."""

import sys


def refuse_save_pretrained() -> None:
    """Raise where ``save_pretrained`` of a model asks a layer of integers for its tensors.

    ``from_pretrained`` would build the float model, find neither its weights nor a use for the
    integers, and go on with random weights. The model may be a parent of what was quantized, so
    nothing but the call itself tells. Adapters of peft are saved alone, and pass.

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
