// SPDX-License-Identifier: BSD-3-Clause
#include "affine/cuda/kernels.cuh"

namespace baraquant::affine {

void input_gradient_cuda(const Call& call, bool through_quantize) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::input_gradient(call, through_quantize);
}

void masked_gradient_cuda(const Call& call, bool through_quantize) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::masked_gradient(call, through_quantize);
}

}  // namespace baraquant::affine
