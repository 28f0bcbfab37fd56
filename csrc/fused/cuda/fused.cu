// SPDX-License-Identifier: BSD-3-Clause
#include "fused/cuda/kernels.cuh"

namespace baraquant::fused {

const Kernels& cuda_kernels() {
  static const Kernels kernels{&norm_cuda, &activation_cuda, &hadamard_cuda};
  return kernels;
}

}  // namespace baraquant::fused
