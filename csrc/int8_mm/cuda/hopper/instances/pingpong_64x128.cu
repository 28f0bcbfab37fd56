// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kPingpong64x128 =
    kernels_of<Tile<64, 128, 128, 2, 1, false, cutlass::gemm::KernelTmaWarpSpecializedPingpong>>();

}  // namespace baraquant::int8_mm::hopper
#endif
