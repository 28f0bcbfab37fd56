// SPDX-License-Identifier: BSD-3-Clause
#include "range/cuda/kernels.cuh"

namespace baraquant::range {

void choose_cuda(const RangeCall& call) {
  const c10::cuda::CUDAGuard guard(call.input.device());
  Launch<Cuda>::choose(call);
}

void observe_cuda(const ObserveCall& call) {
  const c10::cuda::CUDAGuard guard(call.range.input.device());
  Launch<Cuda>::observe(call);
}

const Kernels& cuda_kernels() {
  static const Kernels kernels{&choose_cuda, &quantize_cuda, &fake_quantize_cuda, &observe_cuda};
  return kernels;
}

}  // namespace baraquant::range
