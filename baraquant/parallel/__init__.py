# SPDX-License-Identifier: BSD-3-Clause
"""Prepared and converted models on several GPUs.

:class:`ColwiseParallel` and :class:`RowwiseParallel` are styles for
``torch.distributed.tensor.parallel.parallelize_module``. They give the bits that one process gives.
``import baraquant`` does not import this module, which loads PyTorch's DTensor.
"""

from ._styles import ColwiseParallel, RowwiseParallel

__all__ = ["ColwiseParallel", "RowwiseParallel"]
