// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/grouped_gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kGrouped32x128 =
    grouped_kernels_of<GroupedTile<128, 32, 256, 1, 1, /*swapped_=*/true, /*pingpong=*/true>>();

}  // namespace baraquant::int8_mm::hopper
#endif
