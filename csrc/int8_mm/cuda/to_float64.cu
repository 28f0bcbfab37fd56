// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/gemv.cuh"
#include "int8_mm/cuda/generic/gemm.cuh"
#include "int8_mm/cuda/packed_weight.cuh"

namespace baraquant::int8_mm {

template void launch_generic<double>(GenericTile, const Operands&, const Rescaling<double>&,
                                     double*, cudaStream_t);
template void launch_vector<double>(const Operands&, const Rescaling<double>&, double*, int,
                                    cudaStream_t);
template void launch_packed<double>(const Operands&, const Rescaling<double>&, double*, void*, int,
                                    cudaStream_t);

}  // namespace baraquant::int8_mm
