// SPDX-License-Identifier: BSD-3-Clause
// The kernels of a device, as the ops of the integer matrix family call them.
#pragma once

#include "int8_mm/launch.h"

namespace baraquant::int8_mm {

struct Kernels {
  void (*product)(const ProductCall&);
  // sums[.., n] = sum over k of weight[.., n, k]: int8 [.., n, k] (with rows) to int32 [.., n],
  // both contiguous.
  void (*weight_sums)(const at::Tensor& weight, const at::Tensor& sums);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::int8_mm
