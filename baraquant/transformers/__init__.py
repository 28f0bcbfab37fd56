# SPDX-License-Identifier: BSD-3-Clause
"""transformers, both ways: ``from_pretrained`` quantizes, and reads compressed-tensors folders.

Importing this module lets ``from_pretrained`` take a :class:`BaraquantConfig`: the layers are
quantized while the weights are loaded. ``save_pretrained`` of such a model writes a folder in the
format compressed-tensors, which transformers and vLLM read without baraquant. After
:func:`use_for_compressed_tensors`, ``from_pretrained`` of such a folder makes baraquant's layers,
which compute with integers.

Example:
    >>> import baraquant.transformers
    >>> config = baraquant.transformers.BaraquantConfig(baraquant.W8A8())
    >>> config.scheme == baraquant.W8A8()
    True
"""

from __future__ import annotations

from .._packages import need

need("baraquant.transformers", "transformers", "hf")

from ._folder_quantizer import use_for_compressed_tensors  # noqa: E402
from ._quantizer import BaraquantConfig, register  # noqa: E402

register()

__all__ = ["BaraquantConfig", "use_for_compressed_tensors"]
