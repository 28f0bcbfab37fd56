// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kStreamK16x128 =
    kernels_of<Tile<128, 16, 256, 1, 1, true, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                    cutlass::gemm::StreamKScheduler>>();

}  // namespace baraquant::int8_mm::hopper
#endif
