// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/gradients.h"

#include "affine/core_ops.h"

namespace baraquant::int8_mm {

using affine::OptionalTensor;

at::Tensor dequantized(const at::Tensor& values, const at::Tensor& scale,
                       const at::Tensor& zero_point, Granularity granularity,
                       at::ScalarType dtype) {
  const OptionalTensor s(scale);
  const OptionalTensor z = zero_point.defined() ? OptionalTensor(zero_point) : std::nullopt;
  affine::QuantArgs q{s, z};
  q.granularity = granularity;
  q.axis = 0;
  return affine::dequantize(values, q, dtype);
}

at::Tensor clip_gradient(const at::Tensor& grad, const at::Tensor& mask, at::ScalarType dtype) {
  static const OptionalTensor none;
  affine::QuantArgs q{none, none};  // for messages: the bits say it all
  q.granularity = Granularity::kPerToken;
  return affine::masked_gradient(grad, q, mask, {}, dtype, /*through_quantize=*/false);
}

at::Tensor as_rows(const at::Tensor& tensor) {
  c10::SymInt tokens = 1;
  for (const auto& size : tensor.sym_sizes().slice(0, tensor.dim() - 1)) tokens *= size;
  return tensor.reshape_symint({tokens, tensor.sym_size(-1)});
}

at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype) {
  return as_rows(grad).sum(0, /*keepdim=*/false, dtype);
}

}  // namespace baraquant::int8_mm
