# SPDX-License-Identifier: BSD-3-Clause
"""``use_for_compressed_tensors``: folders of compressed-tensors as baraquant's layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from transformers.quantizers import auto
from transformers.utils.quantization_config import CompressedTensorsConfig as TheirConfig

from .._fields import check_bool
from ..export.compressed_tensors.config import read_config
from ..export.compressed_tensors.scheme import METHOD
from ._folder_quantizer import CALLER, FolderQuantizer
from ._versions import cast_scales_of_slots

_CONFIGS = auto.AUTO_QUANTIZATION_CONFIG_MAPPING
_QUANTIZERS = auto.AUTO_QUANTIZER_MAPPING
# What transformers registers for the format.
_THEIRS = _CONFIGS[METHOD], _QUANTIZERS[METHOD]


class FolderConfig(TheirConfig):  # type: ignore[misc]
    """The object ``quantization_config`` of a folder, as it stands there.

    It has the name and the loading options of transformers' class, which may be given to
    ``from_pretrained``, but does not need the package compressed-tensors.

    Attributes:
        written: What ``save_pretrained`` writes into ``config.json``.
    """

    def __init__(self, **given: Any) -> None:
        self.written = given
        self.quant_method = METHOD
        # What an argument of from_pretrained may set. transformers 4.57 has the second one.
        self.dequantize = False
        self.run_compressed = True
        self.use_optimized_inference = False

    def to_dict(self) -> dict[str, Any]:
        """Return the object."""
        return {**self.written, "quant_method": METHOD}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the object."""
        return self.to_dict()


# transformers compares the names of the classes.
FolderConfig.__name__ = TheirConfig.__name__


def use_for_compressed_tensors(
    on: bool = True, *, allow_missing: bool = False
) -> AbstractContextManager[Any]:
    """Let ``from_pretrained`` load folders of compressed-tensors as baraquant's layers.

    transformers itself decompresses such weights and imitates the rounding of inputs; baraquant's
    layers multiply the integers. A folder that baraquant wrote gives the bits of the model that it
    was written from. The package compressed-tensors is not needed.

    The call holds for the whole process, until ``use_for_compressed_tensors(False)``, or until the
    end of a ``with`` block. Folders are loaded by transformers' own reader all the same with
    ``quantization_config=CompressedTensorsConfig(dequantize=True)``; in transformers 4.57 it is
    ``run_compressed=False``.

    ``from_pretrained`` then raises a ValueError for folders whose weights are no integers of 2 to 8
    bits, and for folders that are damaged or contradict their configuration. The message has the
    path of the layer.

    Args:
        on: False gives the format back to transformers' own reader.
        allow_missing: True lets transformers make a tensor that a folder lacks, such as a new head
            to be trained, with its initial values and a warning. Tensors of quantized layers must
            be there.

    Returns:
        A context manager that restores the reader that was there before.

    Raises:
        TypeError: An argument is not a bool.

    Example:
        >>> import baraquant.transformers
        >>> with baraquant.transformers.use_for_compressed_tensors():
        ...     pass  # model = AutoModelForCausalLM.from_pretrained(folder)
    """
    check_bool("use_for_compressed_tensors", "on", on)
    check_bool("use_for_compressed_tensors", "allow_missing", allow_missing)
    before = _CONFIGS[METHOD], _QUANTIZERS[METHOD]
    if on:
        cast_scales_of_slots()
    _use((FolderConfig, partial(_reader, allow_missing)) if on else _THEIRS)
    back = ExitStack()
    back.callback(_use, before)
    return back


def _use(reader: tuple[Any, Any]) -> None:
    _CONFIGS[METHOD], _QUANTIZERS[METHOD] = reader


def _reader(allow_missing: bool, config: Any, **kwargs: Any) -> Any:
    """Return the quantizer for a folder, or transformers' own where it is to be dequantized."""
    if getattr(config, "dequantize", False) or not getattr(config, "run_compressed", True):
        theirs = _THEIRS[0].from_dict(config.to_dict())
        theirs.dequantize = True
        theirs.run_compressed = False
        make: Callable[..., Any] = _THEIRS[1]
        return make(theirs, **kwargs)
    if not isinstance(config, FolderConfig):
        raise ValueError(
            f"{CALLER}: expected a folder in the format {METHOD}, but it holds a floating model; "
            "to quantize it while it is loaded, give BaraquantConfig(scheme)"
        )
    parsed = read_config(config.to_dict(), CALLER)
    return FolderQuantizer(config, parsed, allow_missing, **kwargs)
