// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/hopper/grouped_gemm.cuh"

BARAQUANT_INSTANCE(grouped_kernels, GroupedTile::k128x128);
