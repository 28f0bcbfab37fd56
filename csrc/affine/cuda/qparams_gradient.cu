// SPDX-License-Identifier: BSD-3-Clause
#include "affine/cuda/kernels.cuh"

namespace baraquant::affine {

void qparams_gradient_cuda(const Call& call, const at::Tensor& scale_gradient,
                           const at::Tensor& zero_point_gradient) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::qparams_gradient(call, scale_gradient, zero_point_gradient);
}

}  // namespace baraquant::affine
