// SPDX-License-Identifier: BSD-3-Clause
// qat_linear and qat_grouped_linear under autocast: the input is cast to its dtype first, as that of
// torch.nn.functional.linear is, and so the output has this dtype. The weight is not cast: what is
// quantized is the parameter as the optimizer holds it, in training as in what is served. Nor is a
// float32 bias, which the epilogue of the product adds in float32. The other ops of the library keep
// the dtypes that they are given.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/plan.h"
#include "int8_mm/core_ops.h"

namespace baraquant::int8_mm {
namespace {

template <at::DeviceType device>
at::Tensor lowered(const at::Tensor& tensor) {
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const bool eligible = at::autocast::is_eligible(tensor, device);
  if (is_planning() && eligible) return cast(tensor, dtype);
  return at::autocast::cached_cast(dtype, tensor, device);  // the cast of a leaf is cached
}

// A bias of the compute type stays; of the other dtypes the op takes that of the output alone.
template <at::DeviceType device>
OptionalTensor fitting_bias(const OptionalTensor& bias) {
  return bias && bias->scalar_type() != at::kFloat ? OptionalTensor(lowered<device>(*bias)) : bias;
}

template <at::DeviceType device>
at::Tensor qat_linear_autocast(const at::Tensor& input, const at::Tensor& weight,
                               const OptionalTensor& bias, const Schemes& schemes,
                               const BackwardArgs& backward, const GivenWeight& given) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return qat_linear(lowered<device>(input), weight, fitting_bias<device>(bias), schemes, backward,
                    given);
}

template <at::DeviceType device>
at::Tensor qat_grouped_linear_autocast(const at::Tensor& input, const at::Tensor& weight,
                                       const at::Tensor& offsets, const OptionalTensor& bias,
                                       const Schemes& schemes, const BackwardArgs& backward) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return qat_grouped_linear(lowered<device>(input), weight, offsets, fitting_bias<device>(bias),
                            schemes, backward);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, AutocastCPU, m) {
  m.impl("qat_linear", kernel_of<&qat_linear_autocast<at::kCPU>>);
  m.impl("qat_grouped_linear", kernel_of<&qat_grouped_linear_autocast<at::kCPU>>);
}
TORCH_LIBRARY_IMPL(baraquant, AutocastCUDA, m) {
  m.impl("qat_linear", kernel_of<&qat_linear_autocast<at::kCUDA>>);
  m.impl("qat_grouped_linear", kernel_of<&qat_grouped_linear_autocast<at::kCUDA>>);
}

}  // namespace baraquant::int8_mm
