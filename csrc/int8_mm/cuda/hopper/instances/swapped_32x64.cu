// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kSwapped32x64 =
    kernels_of<Tile<64, 32, 256, 1, 1, true, cutlass::gemm::KernelTmaWarpSpecialized>>();

}  // namespace baraquant::int8_mm::hopper
#endif
