# SPDX-License-Identifier: BSD-3-Clause
"""Quantized models in the formats of other programs. Each export needs its own optional packages.

The functions take a model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`, check
everything that the format cannot hold, and write nothing if a check fails.
"""

from __future__ import annotations

from typing import Any

from .._lazy import imported

# A function is imported when it is first used: none of the optional packages is needed before.
_HOMES = {
    "from_compressed_tensors": "compressed_tensors",
    "round_biases_": "biases",
    "tie_fused_scales": "fused",
    "to_compressed_tensors": "compressed_tensors",
    "to_gguf": "gguf",
    "to_onnx": "onnx",
    "to_pt2e_ops": "pt2e",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
