// SPDX-License-Identifier: BSD-3-Clause
// The gradients of the integer matrix family, of which autograd.cpp and product_autograd.cpp make
// nodes:
//   dx = inside ? dy @ w^ : 0,   db = sum of dy over tokens
// w^ are the numbers that the weight's integers stand for. Each is written in differentiable ops,
// so that a backward can be differentiated again.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "scale_map.h"

namespace baraquant::int8_mm {

// Integers back in numbers, with a scale for each token, or for each index of axis 0. A zero point
// that is not defined is 0.
at::Tensor dequantized(const at::Tensor& values, const at::Tensor& scale,
                       const at::Tensor& zero_point, Granularity granularity, at::ScalarType dtype);

// The gradient where an element lay inside the range (bit i of the mask: element i, row by row), 0
// elsewhere.
at::Tensor clip_gradient(const at::Tensor& grad, const at::Tensor& mask, at::ScalarType dtype);

// [tokens, last] of [..., last].
at::Tensor as_rows(const at::Tensor& tensor);

// Of a bias [N] of that dtype, which is added to each token.
at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype);

// Whether forward-mode autograd has a derivative of the tensor.
inline bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

}  // namespace baraquant::int8_mm
