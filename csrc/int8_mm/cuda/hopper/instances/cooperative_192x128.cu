// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

template const Kernels& hopper_kernels<HopperTile::kCooperative192x128>();

}  // namespace baraquant::int8_mm::hopper
#endif
