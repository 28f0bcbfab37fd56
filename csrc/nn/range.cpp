// SPDX-License-Identifier: BSD-3-Clause
#include "nn/range.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>

#include "api/ops.h"

namespace baraquant::nn {

namespace {

// 2^exponent for a normal number, by its bits: a GPU's 2^x need not be exact.
at::Tensor power_of_two(const at::Tensor& exponent, at::ScalarType dtype) {
  const bool is_double = dtype == at::kDouble;
  const auto biased = exponent.to(is_double ? at::kLong : at::kInt) + (is_double ? 1023 : 127);
  return biased.mul(is_double ? int64_t{1} << 52 : int64_t{1} << 23).view(dtype);
}

}  // namespace

at::Tensor rounded_scale(const at::Tensor& scale, const std::string& scale_dtype) {
  if (scale_dtype == "float32") return scale;
  const bool is_bfloat16 = scale_dtype == "bfloat16";
  // The op dequantizes ones, so its result is the scale, rounded once.
  const auto ones = at::ones({scale.numel(), 1}, scale.options().dtype(at::kChar));
  const auto values = dequantize_per_channel(ones, scale.reshape(-1), std::nullopt, 0,
                                             is_bfloat16 ? at::kBFloat16 : at::kHalf);
  return values.reshape(scale.sizes())
      .to(scale.scalar_type())
      .clamp_min(is_bfloat16 ? 0x1p-126 : 0x1p-24);
}

std::tuple<at::Tensor, at::Tensor> qparams_of_range(const at::Tensor& min_val,
                                                    const at::Tensor& max_val, int64_t low,
                                                    int64_t high, bool symmetric,
                                                    const std::string& scale_dtype) {
  const auto ends = at::stack({min_val, max_val}).masked_fill(min_val > max_val, 0.0);
  auto [scale, zero_point] = ends.dim() == 1
                                 ? choose_qparams_per_tensor(ends, low, high, symmetric)
                                 : choose_qparams_per_channel(ends, 1, low, high, symmetric);
  if (scale_dtype == "float32") return {scale, zero_point};
  scale = rounded_scale(scale, scale_dtype);
  if (symmetric) return {scale, zero_point};
  // low - rint(min / scale), clamped: the op has the one formula of the rounding.
  const auto least = (-ends[0]).clamp_min(0.0).reshape({-1, 1});
  const auto first = at::full_like(zero_point, low).reshape(-1);
  const auto zeros =
      quantize_per_channel(least, scale.reshape(-1), first, 0, low, high, scale.scalar_type());
  return {scale, zeros.reshape(scale.sizes()).to(at::kInt)};
}

at::Tensor power_to_one(const at::Tensor& magnitude) {
  // From 2^-most to 2^most the power is a normal number, and so is its inverse.
  const double most = magnitude.scalar_type() == at::kDouble ? 1022 : 126;
  const auto usual = magnitude.isfinite().logical_and(magnitude > 0);
  const auto exponent = std::get<1>(at::frexp(at::where(usual, magnitude, 1.0)));
  return power_of_two((1 - exponent).clamp(-most, most), magnitude.scalar_type());
}

at::Tensor segments(const std::string& owner, const std::string& granularity, int64_t axis,
                    int64_t size, const at::Tensor& input) {
  const auto as_rows = [](const at::Tensor& values) {
    const auto rows = values.size(0);
    return values.reshape({rows, rows == 0 ? 0 : values.numel() / rows});
  };
  if (granularity == "per_tensor") return input.reshape({1, input.numel()});
  if (granularity == "per_channel") return as_rows(input.movedim(axis, 0));
  if (granularity == "per_token") {
    const auto tokens = c10::multiply_integers(input.sizes().slice(0, input.sizes().size() - 1));
    return input.reshape({tokens, input.size(-1)});
  }
  TORCH_CHECK_VALUE(axis == -1 || axis == input.dim() - 1, owner,
                    ": expected groups along the last dimension");
  TORCH_CHECK_VALUE(input.size(-1) % size == 0, owner, ": expected group_size to divide ",
                    input.size(-1), ", but got ", size);
  return input.reshape({-1, size});
}

}  // namespace baraquant::nn
