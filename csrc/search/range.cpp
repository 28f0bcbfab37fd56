// SPDX-License-Identifier: BSD-3-Clause
#include "search/range.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "api/ops.h"

namespace baraquant::search {

at::Tensor rounded_scale(const at::Tensor& scale, std::string_view scale_dtype) {
  if (scale_dtype == "float32") return scale;
  const bool is_bfloat16 = scale_dtype == "bfloat16";
  // The op dequantizes ones, so its result is the scale, rounded once. Two casts would not do:
  // Inductor removes them.
  const auto ones = at::ones_symint({scale.sym_numel(), 1}, scale.options().dtype(at::kChar));
  const auto values = dequantize_per_channel(ones, scale.reshape(-1), std::nullopt, 0,
                                             is_bfloat16 ? at::kBFloat16 : at::kHalf);
  return values.reshape_symint(scale.sym_sizes())
      .to(scale.scalar_type())
      .clamp_min(is_bfloat16 ? 0x1p-126 : 0x1p-24);
}

std::tuple<at::Tensor, at::Tensor> qparams_of_range(const at::Tensor& min_val,
                                                    const at::Tensor& max_val, int64_t quant_min,
                                                    int64_t quant_max, bool symmetric,
                                                    std::string_view scale_dtype) {
  const auto ends = at::stack({min_val, max_val}).masked_fill(min_val > max_val, 0.0);  // [2, ...]
  auto [scale, zero_point] =
      ends.dim() == 1 ? choose_qparams_per_tensor(ends, quant_min, quant_max, symmetric)
                      : choose_qparams_per_channel(ends, 1, quant_min, quant_max, symmetric);
  if (scale_dtype == "float32") return {scale, zero_point};
  scale = rounded_scale(scale, scale_dtype);
  if (symmetric) return {scale, zero_point};
  // quant_min - rint(min / scale), clamped: the op has the one formula of the rounding.
  const auto least = (-ends.select(0, 0)).clamp_min(0.0).reshape({-1, 1});
  const auto first = at::full_like(zero_point, quant_min).reshape(-1);
  const auto zeros = quantize_per_channel(least, scale.reshape(-1), first, 0, quant_min, quant_max,
                                          scale.scalar_type());
  return {scale, zeros.reshape_symint(scale.sym_sizes()).to(at::kInt)};
}

at::Tensor power_to_one(const at::Tensor& magnitude) {
  const bool is_double = magnitude.scalar_type() == at::kDouble;
  // From 2^-most to 2^most the power is a normal number, and so is its inverse.
  const int64_t most = is_double ? 1022 : 126;
  const auto is_usual = magnitude.isfinite() & (magnitude > 0);
  const auto exponent = std::get<1>(at::frexp(at::where(is_usual, magnitude, 1.0)));
  const auto power = at::rsub(exponent, 1).clamp(-most, most);
  // By its bits: a GPU's 2^x need not be exact.
  const auto biased = power.to(is_double ? at::kLong : at::kInt) + (is_double ? 1023 : 127);
  return at::bitwise_left_shift(biased, is_double ? 52 : 23).view(magnitude.scalar_type());
}

namespace {

// What the largest of `count` magnitudes is scaled to.
double unit(int64_t count) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
  return std::ldexp(1.0, std::min(52, 62 - bits));
}

}  // namespace

at::Tensor sum_of_magnitudes(const at::Tensor& rows, const at::Tensor& largest, int64_t count) {
  const auto shares = rows.abs().to(at::kDouble) / largest.to(at::kDouble).unsqueeze(1);
  return (shares.nan_to_num(0.0) * unit(count)).round().to(at::kLong).sum(1);
}

at::Tensor mean_of_magnitudes(const at::Tensor& sum, const at::Tensor& largest, int64_t count) {
  // By a tensor: a GPU divides by a number as it multiplies by the inverse.
  const auto terms = at::full_like(sum, count, at::kDouble);
  const auto mean = sum.to(at::kDouble) / unit(count) / terms * largest.to(at::kDouble);
  const bool is_double = largest.scalar_type() == at::kDouble;
  const double least = is_double ? std::numeric_limits<double>::min() : kSmallestNormal;
  return at::where(largest == 0, 1.0, mean.to(largest.scalar_type()).clamp_min(least));
}

}  // namespace baraquant::search
