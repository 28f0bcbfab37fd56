// SPDX-License-Identifier: BSD-3-Clause
#ifdef BARAQUANT_WITH_CUTLASS
#include "int8_mm/cuda/hopper/grouped_gemm.cuh"

namespace baraquant::int8_mm::hopper {

template const Kernels& grouped_kernels<GroupedTile::k64x256>();

}  // namespace baraquant::int8_mm::hopper
#endif
