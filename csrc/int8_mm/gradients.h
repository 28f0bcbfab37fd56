// SPDX-License-Identifier: BSD-3-Clause
// The gradients of the integer matrix family, of which autograd.cpp and product_autograd.cpp make
// nodes:
//   dx = inside ? dy @ w^ : 0,   dw = dy^T @ x^,   db = sum of dy over tokens
// w^ and x^ are the numbers that the integers stand for. Each is written in differentiable ops,
// so that a backward can be differentiated again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/_unsafe_view.h>

#include <optional>

#include "granularity/scale_map.h"

namespace baraquant::int8_mm {

// Integers back in numbers, with a scale for each token, or for each row of a weight [N, K] or
// [E, N, K] (kPerChannel). A zero point that is not defined is 0.
at::Tensor dequantized(const at::Tensor& values, const at::Tensor& scale,
                       const at::Tensor& zero_point, Granularity granularity, at::ScalarType dtype);

// The gradient where an element lay inside the range (bit i of the mask: element i, row by row), 0
// elsewhere.
at::Tensor clip_gradient(const at::Tensor& grad, const at::Tensor& mask, at::ScalarType dtype);

// [tokens, last] of [..., last].
at::Tensor as_rows(const at::Tensor& tensor);

// A weight [E, N, K] as [E * N, K], for a function `of` whose result has that shape.
template <typename Of>
at::Tensor by_rows(const at::Tensor& weight, const Of& of) {
  if (weight.dim() == 2) return of(weight);
  return at::_unsafe_view_symint(of(as_rows(weight)), weight.sym_sizes());
}

// The three gradients of a linear layer, of whose output `grad` is the gradient. With offsets that
// are defined, of a grouped one.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight,
                          const at::Tensor& offsets);
at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input,
                           const at::Tensor& offsets);
at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype, const at::Tensor& offsets);

// Whether forward-mode autograd has a derivative of the tensor.
inline bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

}  // namespace baraquant::int8_mm
