# SPDX-License-Identifier: BSD-3-Clause
"""Prepared and converted models on several GPUs.

:class:`ColwiseParallel` and :class:`RowwiseParallel` are styles for
``torch.distributed.tensor.parallel.parallelize_module``. They give the bits that one process gives.
:func:`quantize_all_gather` lets ``fully_shard`` send integers instead of floating weights.
``import baraquant`` does not import this module, which loads PyTorch's DTensor.
"""

from ._gather import quantize_all_gather
from ._styles import ColwiseParallel, RowwiseParallel

__all__ = ["ColwiseParallel", "RowwiseParallel", "quantize_all_gather"]
