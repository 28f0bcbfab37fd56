// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/grouped_gemm.cuh"

namespace baraquant::int8_mm::hopper {

const Kernels kGrouped128x128 =
    grouped_kernels_of<GroupedTile<128, 128, 128, 1, 2, /*swapped_=*/false, /*pingpong=*/true>>();

}  // namespace baraquant::int8_mm::hopper
#endif
