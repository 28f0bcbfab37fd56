// SPDX-License-Identifier: BSD-3-Clause
// The kernels of a device, as the ops call them.
#pragma once

#include "affine/launch.h"

namespace baraquant::affine {

struct Kernels {
  void (*quantize)(const Call&);
  void (*fake_quantize)(const Call&);
  void (*dequantize)(const Call&, at::ScalarType compute);
  void (*input_gradient)(const Call&, bool through_quantize);
  void (*masked_gradient)(const Call&, bool through_quantize);
  void (*qparams_gradient)(const Call&, const at::Tensor& scale_gradient,
                           const at::Tensor& zero_point_gradient);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::affine
