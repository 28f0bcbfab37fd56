// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/gemv.cuh"
#include "int8_mm/cuda/generic/gemm.cuh"
#include "int8_mm/cuda/packed_weight.cuh"

namespace baraquant::int8_mm {

template void launch_generic<float>(GenericTile, const Operands&, const Rescaling<float>&, float*,
                                    cudaStream_t);
template void launch_vector<float>(const Operands&, const Rescaling<float>&, float*, int,
                                   cudaStream_t);
template void launch_packed<float>(const Operands&, const Rescaling<float>&, float*, void*, int,
                                   cudaStream_t);

}  // namespace baraquant::int8_mm
