// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/hopper/gemm.cuh"

BARAQUANT_INSTANCE(hopper_kernels, HopperTile::kTwoWarps64x64);
