# SPDX-License-Identifier: BSD-3-Clause
"""What ``save_pretrained`` writes for models of baraquant: the format compressed-tensors."""

from __future__ import annotations

import secrets
from typing import Any

from torch import Tensor
from transformers.quantizers.base import HfQuantizer

from ..export.compressed_tensors.config import SAVE
from ..export.compressed_tensors.model import describe
from ..export.compressed_tensors.ties import computes_ties, configs_of, loses_ties
from ..export.hf_folder import source_folder, unknown_tensors, warn_of_unknown_tensors
from ..nn.shared.pretrained import tensors_to_translate


class WritesCompressedTensors(HfQuantizer):  # type: ignore[misc]
    """A quantizer whose models ``save_pretrained`` writes as compressed-tensors.

    Its ``quantization_config`` has an attribute ``written``, which ``config.json`` gets.
    """

    serve: str | None = None
    caller: str  # the public function, for messages
    is_trainable = True  # of adapters: the layers pass a gradient to their input
    is_compileable = True

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Refuse to offload layers to the disk, from where they cannot be loaded."""
        if isinstance(device_map, dict) and "disk" in device_map.values():
            raise ValueError(
                f"{self.caller}: expected a device_map of devices, but it puts modules on the "
                "disk, from where quantized layers cannot be loaded"
            )

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        """Return True."""
        return True

    def get_state_dict_and_metadata(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Tensor] | None, dict[str, str]]:
        """Return the tensors of the format compressed-tensors, and note its configuration.

        Embeddings are written dequantized, with the same values: transformers cannot load quantized
        ones. Adapters of peft are saved by themselves. transformers writes the files in place, one
        after the other: all of them say the number of the save, which our readers compare.

        Raises:
            ValueError: The format cannot hold a layer, which is named.
        """
        if getattr(model, "_hf_peft_config_loaded", False):
            return None, {}
        source = source_folder("save_pretrained", model, None)
        with tensors_to_translate():
            warn_of_unknown_tensors("save_pretrained", source, model, stacklevel=4)
            state, written = describe(
                model, serve=self.serve, float_embeddings=True, caller="save_pretrained"
            )
        save = {SAVE: secrets.token_hex(8)}
        self.quantization_config.written = written | save
        # transformers 4.57 has given the model a copy.
        model.config.quantization_config = self.quantization_config
        return state, save


def note_ties(model: Any) -> None:
    """Let the configuration say that the embeddings are not tied, if one is quantized."""
    if loses_ties(model) and not computes_ties(model):
        for config in configs_of(model.config):
            config.tie_word_embeddings = False


def unknown_parts(model: Any) -> dict[str, str]:
    """Return what the folder of a model has and the model has not, with the reason for a report."""
    source = source_folder("from_pretrained", model, None)
    parts = [] if source is None else unknown_tensors(source, model)
    reason = f"{type(model).__name__} has no place for these tensors of its folder; not loaded"
    return dict.fromkeys(parts, reason)
