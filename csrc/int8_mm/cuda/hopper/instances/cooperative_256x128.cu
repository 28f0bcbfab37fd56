// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kCooperative256x128 = kernels_of<
    Tile<256, 128, 128, 1, 1, false, cutlass::gemm::KernelTmaWarpSpecializedCooperative>>();

}  // namespace baraquant::int8_mm::hopper
#endif
