// SPDX-License-Identifier: BSD-3-Clause
// qat_linear and qat_grouped_linear under autocast: the input is cast to its dtype first, as that of
// torch.nn.functional.linear is, and so the output has this dtype. The weight is not cast: what is
// quantized is the parameter as the optimizer holds it, in training as in what is served. Nor is a
// float32 bias, which the epilogue of the product adds in float32. The other ops of the library keep
// the dtypes that they are given.
#include <torch/library.h>

#include "frame/autocast.h"
#include "int8_mm/core_ops.h"

namespace baraquant::int8_mm {
namespace {

// A bias of the compute type stays; of the other dtypes the op takes that of the output alone.
template <at::DeviceType device>
OptionalTensor fitting_bias(const OptionalTensor& bias) {
  return bias && bias->scalar_type() != at::kFloat ? OptionalTensor(lowered<device>(*bias)) : bias;
}

// The call in the dtypes of autocast, with the key of autocast left out.
template <at::DeviceType device, typename Weight, typename... More>
at::Tensor qat_autocast(const QatLinearOf<Weight>& call, const More&... more) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::Tensor input = lowered<device>(call.input);
  const OptionalTensor bias = fitting_bias<device>(call.bias);
  const QatLinearOf<Weight> lower{input, call.weight, bias, call.schemes};
  if constexpr (kIsGrouped<Weight>) {
    return qat_grouped_linear(lower, more...);
  } else {
    return qat_linear(lower, more...);
  }
}

template <at::DeviceType device>
void register_autocast(torch::Library& m) {
  m.impl("qat_linear",
         kernel_of<&qat_autocast<device, const at::Tensor&, BackwardArgs, GivenWeight>>);
  m.impl("qat_grouped_linear", kernel_of<&qat_autocast<device, GroupedWeight, BackwardArgs>>);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, AutocastCPU, m) { register_autocast<at::kCPU>(m); }
TORCH_LIBRARY_IMPL(baraquant, AutocastCUDA, m) { register_autocast<at::kCUDA>(m); }

}  // namespace baraquant::int8_mm
