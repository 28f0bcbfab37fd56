# SPDX-License-Identifier: BSD-3-Clause
"""LoRA adapters over quantized layers, by Hugging Face PEFT."""

from ..export._packages import need

need("baraquant.peft", "peft", "peft")

from ._layers import LoraConv1d, LoraConv2d, LoraConv3d, LoraEmbedding, LoraLinear  # noqa: E402
from ._register import register  # noqa: E402

__all__ = [
    "LoraConv1d",
    "LoraConv2d",
    "LoraConv3d",
    "LoraEmbedding",
    "LoraLinear",
    "register",
]

register()
