# SPDX-License-Identifier: BSD-3-Clause
"""LoRA adapters over quantized layers, by Hugging Face's PEFT.

Importing this module teaches PEFT every kind of quantized layer whose float kind it has a LoRA for:
linear layers (transformers' ``Conv1D`` too), embeddings and convolutions, prepared or converted.
Nothing else changes: ``LoraConfig``, ``get_peft_model``, ``PeftModel.from_pretrained``,
``save_pretrained``, ``target_modules="all-linear"`` and the rest are used as ever. Layers of other
kinds stay PEFT's own.

Over a prepared layer the adapters are added to the weight before it is rounded: training computes
what is served, and neither merging nor :func:`baraquant.qat.convert_` changes a bit.

Over a converted layer only the adapter trains, and only the adapter is saved. ``merge_adapter`` and
``merge_and_unload`` put a float layer in its place, with the dequantized weight plus the adapter;
``unmerge_adapter`` puts the very integers back. ``modules_to_save`` trains a float copy of a
converted layer. What would write into integers raises an error before the model has changed.

Example:
    >>> import peft
    >>> import baraquant.peft
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    >>> _ = baraquant.quantize_(model, baraquant.W8A8())
    >>> adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    >>> sorted({p.shape for p in adapted.parameters() if p.requires_grad})
    [torch.Size([2, 8]), torch.Size([4, 2])]
"""

from .._packages import need

need("baraquant.peft", "peft", "peft")

from ._layers import LoraConv1d, LoraConv2d, LoraConv3d, LoraEmbedding, LoraLinear  # noqa: E402
from ._register import register  # noqa: E402

__all__ = ["LoraConv1d", "LoraConv2d", "LoraConv3d", "LoraEmbedding", "LoraLinear", "register"]

register()
