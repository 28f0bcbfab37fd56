// SPDX-License-Identifier: BSD-3-Clause
// The kernels of a device, as the ops of the range family call them.
#pragma once

#include "range/launch.h"

namespace baraquant::range {

struct Kernels {
  void (*choose)(const RangeCall&);
  // These two compute the scales and the result while they read the input once. They return false,
  // having done nothing, if the segments do not allow that.
  bool (*quantize)(const RangeCall&, const at::Tensor& result, const at::Tensor& mask);
  bool (*fake_quantize)(const RangeCall&, const at::Tensor& result, const at::Tensor& mask);
  void (*observe)(const ObserveCall&);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::range
