// SPDX-License-Identifier: BSD-3-Clause
// The scales family below autograd, one function for CPU, CUDA and Meta. It checks, allocates and
// launches. Meta stops before the launch, so shapes and errors are the same on every device.

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/devices.h"
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

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::scales
