// SPDX-License-Identifier: BSD-3-Clause
#include "affine/cuda/kernels.cuh"

namespace baraquant::affine {

void dequantize_cuda(const Call& call, at::ScalarType compute) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::dequantize(call, compute);
}

}  // namespace baraquant::affine
