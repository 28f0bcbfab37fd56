// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kWarps64x64 =
    kernels_of<Tile<64, 64, 256, 1, 1, false, cutlass::gemm::KernelTmaWarpSpecialized>>();

}  // namespace baraquant::int8_mm::hopper
#endif
