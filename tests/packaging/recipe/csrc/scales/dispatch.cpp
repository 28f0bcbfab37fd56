// SPDX-License-Identifier: BSD-3-Clause
// The scales family below autograd, one function for CPU, CUDA and Meta. It checks, allocates and
// launches. Meta stops before the launch, so shapes and errors are the same on every device.
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/no_cuda.h"
#include "frame/outputs.h"
#include "scales/launch.h"

namespace baraquant::scales {
namespace {

at::Tensor round_device(const at::Tensor& scale) {
  check_floating("baraquant::round_to_power_of_two_scale", "scale", scale);
  const at::Tensor result = empty_dense(scale.sym_sizes(), scale.options());
  if (has_work(result)) kernels(scale).round(contiguous(scale), result);
  return result;
}

void register_kernels(torch::Library& m) {
  m.impl("round_to_power_of_two_scale", kernel_of<&round_device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }

#ifndef BARAQUANT_WITH_CUDA
const Kernels& cuda_kernels() { raise_without_cuda(); }
#endif

}  // namespace baraquant::scales
