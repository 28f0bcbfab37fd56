// SPDX-License-Identifier: BSD-3-Clause
// weight_only_linear under autocast: the input and the bias are cast, as those of
// torch.nn.functional.linear. Several products are computed one by one.
#include <torch/library.h>

#include "frame/autocast.h"
#include "weight_only/core_ops.h"

namespace baraquant::weight_only {
namespace {

template <at::DeviceType device>
at::Tensor linear_autocast(const LinearArgs& args) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto fitting = [&](const at::Tensor& tensor) {
    return args.weight_scale.scalar_type() == at::kFloat ? lowered<device>(tensor) : tensor;
  };
  return weight_only_linear({.input = fitting(args.input),
                             .weight = args.weight,
                             .weight_scale = args.weight_scale,
                             .bias = args.bias ? OptionalTensor(fitting(*args.bias)) : args.bias,
                             .weight_zero_point = args.weight_zero_point,
                             .group_size = args.group_size});
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, AutocastCPU, m) {
  m.impl("weight_only_linear", kernel_of<&linear_autocast<at::kCPU>>);
  m.impl("_weight_only_linears", kernel_of<&one_by_one<Linears>>);
}
TORCH_LIBRARY_IMPL(baraquant, AutocastCUDA, m) {
  m.impl("weight_only_linear", kernel_of<&linear_autocast<at::kCUDA>>);
  m.impl("_weight_only_linears", kernel_of<&one_by_one<Linears>>);
}

}  // namespace baraquant::weight_only
