// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kStreamK64x128 =
    kernels_of<Tile<128, 64, 128, 1, 1, true, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                    cutlass::gemm::StreamKScheduler>>();

}  // namespace baraquant::int8_mm::hopper
#endif
