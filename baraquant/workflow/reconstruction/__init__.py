# SPDX-License-Identifier: BSD-3-Clause
"""Block-wise reconstruction: each block learns to give the outputs of the float block."""

from .reconstruct import reconstruct_ as reconstruct_
from .report import Reconstruction as Reconstruction
