// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/gemv.cuh"
#include "int8_mm/cuda/generic/gemm.cuh"
#include "int8_mm/cuda/packed_weight.cuh"

namespace baraquant::int8_mm {

template void launch_generic<BFloat16>(GenericTile, const Operands&, const Rescaling<float>&,
                                       BFloat16*, cudaStream_t);
template void launch_vector<BFloat16>(const Operands&, const Rescaling<float>&, BFloat16*, int,
                                      cudaStream_t);
template void launch_packed<BFloat16>(const Operands&, const Rescaling<float>&, BFloat16*, void*,
                                      int, cudaStream_t);

}  // namespace baraquant::int8_mm
