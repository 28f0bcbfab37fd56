// SPDX-License-Identifier: BSD-3-Clause
// weight_only_linear under autocast: the input and the bias are cast, as those of
// torch.nn.functional.linear.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "frame/copies.h"
#include "frame/plan.h"
#include "weight_only/core_ops.h"

namespace baraquant::weight_only {
namespace {

template <at::DeviceType device>
at::Tensor linear_autocast(const LinearArgs& args) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const auto lowered = [&](const at::Tensor& tensor) {
    if (args.weight_scale.scalar_type() != at::kFloat ||
        !at::autocast::is_eligible(tensor, device)) {
      return tensor;
    }
    if (is_planning()) return cast(tensor, dtype);
    return at::autocast::cached_cast(dtype, tensor, device);  // the cast of a leaf is cached
  };
  return weight_only_linear({.input = lowered(args.input),
                             .weight = args.weight,
                             .weight_scale = args.weight_scale,
                             .bias = args.bias ? OptionalTensor(lowered(*args.bias)) : args.bias,
                             .weight_zero_point = args.weight_zero_point,
                             .group_size = args.group_size});
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, AutocastCPU, m) {
  m.impl("weight_only_linear", kernel_of<&linear_autocast<at::kCPU>>);
}
TORCH_LIBRARY_IMPL(baraquant, AutocastCUDA, m) {
  m.impl("weight_only_linear", kernel_of<&linear_autocast<at::kCUDA>>);
}

}  // namespace baraquant::weight_only
