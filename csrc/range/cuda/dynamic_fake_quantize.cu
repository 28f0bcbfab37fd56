// SPDX-License-Identifier: BSD-3-Clause
#include "range/cuda/kernels.cuh"

namespace baraquant::range {

bool fake_quantize_cuda(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
  const c10::cuda::CUDAGuard guard(call.input.device());
  return Launch<Cuda>::fake_quantize(call, result, mask);
}

}  // namespace baraquant::range
