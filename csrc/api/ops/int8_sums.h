// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/cpp_headers.py out of the registered schemas: do not edit.
/// @file
/// The sums of products of integers, and their way back to numbers.
#pragma once

#include "find.h"

namespace baraquant {

/// Multiply integers and return their exact sums.
///
/// `acc[t, n] = sum_k (q[t, k] - z[t]) * w[n, k]`
///
/// These are the sums of int8_linear, which are added and cut up without an error: those of a
/// weight whose columns lie on several processes are the sum of theirs. rescale_product makes
/// numbers of them.
///
/// @param input The integers `q`, `[..., K]`; int8 or uint8. Any strides; what is not contiguous is
///     copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous.
/// @param input_zero_point `z`: one for all, `[]` or `[1]`, or one for each token, `[...]` or
///     `[..., 1]`; of any integer dtype; std::nullopt stands for 0. A value that the dtype of
///     `input` does not hold counts as the nearest one.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point. If it is
///     std::nullopt, each call computes it.
/// @return `[..., N]`, int32, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that the op does not
///     take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its zero points.
inline at::Tensor int8_product(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& input_zero_point = std::nullopt,
                               const std::optional<at::Tensor>& weight_sum = std::nullopt) {
  static const auto op =
      api::find<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           const std::optional<at::Tensor>&)>("int8_product", "");
  return op.call(input, weight, input_zero_point, weight_sum);
}

/// Scale the sums of a product of integers back to numbers: the last step of `int8_linear`.
///
/// `y[t, n] = acc[t, n] * sw[n] * s[t] + bias[n]`
///
/// `rescale_product(int8_product(q, w), s, sw, bias)` has the bits of `int8_linear(q, w, s, sw,
/// bias)`.
///
/// @param input The sums `acc`, `[..., N]`, int32. Any strides; what is not contiguous is copied
///     first.
/// @param input_scale `s`: one for all, `[]` or `[1]`, or one for each token, `[...]` or `[...,
///     1]`; float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[N]`, of the dtype of `input_scale`.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that the op does not
///     take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor rescale_product(const at::Tensor& input, const at::Tensor& input_scale,
                                  const at::Tensor& weight_scale,
                                  const std::optional<at::Tensor>& bias = std::nullopt,
                                  at::ScalarType dtype = at::kFloat) {
  static const auto op =
      api::find<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const std::optional<at::Tensor>&, at::ScalarType)>("rescale_product",
                                                                              "");
  return op.call(input, input_scale, weight_scale, bias, dtype);
}

}  // namespace baraquant
