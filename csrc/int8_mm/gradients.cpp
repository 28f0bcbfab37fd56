// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/gradients.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include "affine/core_ops.h"
#include "int8_mm/grouped_products.h"

namespace baraquant::int8_mm {

at::Tensor dequantized(const at::Tensor& values, const at::Tensor& scale,
                       const at::Tensor& zero_point, Granularity granularity,
                       at::ScalarType dtype) {
  const bool per_row = granularity == Granularity::kPerChannel;
  const OptionalTensor given_scale(per_row ? scale.flatten() : scale);
  const OptionalTensor given_zero_point =
      zero_point.defined() ? OptionalTensor(zero_point) : std::nullopt;
  const affine::QuantArgs q{.scale = given_scale,
                            .zero_point = given_zero_point,
                            .scope = {.granularity = granularity, .axis = 0}};
  if (!per_row) return affine::dequantize(values, q, dtype);
  return by_rows(values,
                 [&](const at::Tensor& rows) { return affine::dequantize(rows, q, dtype); });
}

at::Tensor clip_gradient(const at::Tensor& grad, const at::Tensor& mask, at::ScalarType dtype) {
  static const OptionalTensor none;
  // The gradient depends on the mask alone; messages name the granularity.
  const affine::QuantArgs q{.scale = none, .zero_point = none, .scope = PerToken::from_flat()};
  return affine::masked_gradient(grad, q, mask, {}, dtype, /*through_quantize=*/false);
}

at::Tensor as_rows(const at::Tensor& tensor) {
  c10::SymInt tokens = 1;
  for (const auto& size : tensor.sym_sizes().slice(0, tensor.dim() - 1)) tokens *= size;
  return tensor.reshape_symint({tokens, tensor.sym_size(-1)});
}

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight,
                          const at::Tensor& offsets) {
  return offsets.defined() ? grouped_matmul(grad, weight, offsets) : at::matmul(grad, weight);
}

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& offsets) {
  if (offsets.defined()) return grouped_outer(grad, input, offsets);
  return at::mm(as_rows(grad).t(), as_rows(input));
}

at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype, const at::Tensor& offsets) {
  if (offsets.defined()) return grouped_sum(grad, offsets, dtype);
  return as_rows(grad).sum(0, /*keepdim=*/false, dtype);
}

}  // namespace baraquant::int8_mm
