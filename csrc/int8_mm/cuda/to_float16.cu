// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/gemv.cuh"
#include "int8_mm/cuda/generic/gemm.cuh"
#include "int8_mm/cuda/packed_weight.cuh"

namespace baraquant::int8_mm {

template void launch_generic<Float16>(GenericTile, const Operands&, const Rescaling<float>&,
                                      Float16*, cudaStream_t);
template void launch_vector<Float16>(const Operands&, const Rescaling<float>&, Float16*, int,
                                     cudaStream_t);
template void launch_packed<Float16>(const Operands&, const Rescaling<float>&, Float16*, void*, int,
                                     cudaStream_t);

}  // namespace baraquant::int8_mm
