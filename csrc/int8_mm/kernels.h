// SPDX-License-Identifier: BSD-3-Clause
// The kernels of a device, as the ops of the integer matrix family call them.
#pragma once

#include "int8_mm/launch.h"

namespace baraquant::int8_mm {

struct Kernels {
  void (*product)(const ProductCall&);
  // sums[.., n] = sum over k of weight[.., n, k]. The weight is int8 [.., n, k] with at least one
  // row, sums is int32 [.., n]; both are contiguous.
  void (*weight_sums)(const at::Tensor& weight, const at::Tensor& sums);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::int8_mm
