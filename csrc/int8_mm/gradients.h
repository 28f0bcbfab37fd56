// SPDX-License-Identifier: BSD-3-Clause
// The gradients of the integer matrix family, which autograd.cpp makes nodes of:
//   dx = inside ? dy @ w^ : 0,   dw = dy^T @ x^,   db = sum of dy over tokens
// w^ and x^ are the dequantized weight and input. Each gradient consists of differentiable ops, so
// that a backward can be differentiated again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_unsafe_view.h>

#include "granularity/scale_map.h"

namespace baraquant::int8_mm {

// Dequantizes with a scale for each token, or for each row of a weight [N, K] or [E, N, K]
// (kPerChannel). An undefined zero point means 0.
at::Tensor dequantized(const at::Tensor& values, const at::Tensor& scale,
                       const at::Tensor& zero_point, Granularity granularity, at::ScalarType dtype);

// Returns the gradient of elements that lay inside the range and 0 for the others. Bit i of the
// mask belongs to element i in row-major order.
at::Tensor clip_gradient(const at::Tensor& grad, const at::Tensor& mask, at::ScalarType dtype);

// Views [..., last] as [tokens, last].
at::Tensor as_rows(const at::Tensor& tensor);

// Applies `of` to a weight [E, N, K] seen as [E * N, K]; its result must have that shape.
template <typename Of>
at::Tensor by_rows(const at::Tensor& weight, const Of& of) {
  if (weight.dim() == 2) return of(weight);
  return at::_unsafe_view_symint(of(as_rows(weight)), weight.sym_sizes());
}

// The three gradients of a linear layer; `grad` is the gradient of its output. If the offsets are
// defined, the layer is grouped.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight,
                          const at::Tensor& offsets);
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& offsets);
at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype, const at::Tensor& offsets);

}  // namespace baraquant::int8_mm
