// SPDX-License-Identifier: BSD-3-Clause
#include "affine/cuda/kernels.cuh"

namespace baraquant::affine {

void quantize_cuda(const Call& call) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::quantize(call);
}

void fake_quantize_cuda(const Call& call) {
  const c10::cuda::CUDAGuard guard(call.result.device());
  Launch<Cuda>::fake_quantize(call);
}

const Kernels& cuda_kernels() {
  static const Kernels kernels{&quantize_cuda,       &fake_quantize_cuda,   &dequantize_cuda,
                               &input_gradient_cuda, &masked_gradient_cuda, &qparams_gradient_cuda};
  return kernels;
}

}  // namespace baraquant::affine
