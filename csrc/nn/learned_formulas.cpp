// SPDX-License-Identifier: BSD-3-Clause
#include "nn/learned_formulas.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "int4/math.h"
#include "search/range.h"
#include "search/weights.h"

namespace baraquant::nn {

namespace {

constexpr int64_t most_factor = int4::kMaxFactor;

// The signed integers of a width.
struct Ends {
  int64_t low, high;
};

Ends ends_of(int64_t bits) {
  const int4::Width width{static_cast<int>(bits)};
  return {-width.half(), width.positive()};
}

}  // namespace

at::Tensor with_gradient_factor(const at::Tensor& value, double factor) {
  const auto part = value * factor;
  return value.detach() + (part - part.detach());
}

std::tuple<at::Tensor, at::Tensor> first_learned_qparams(const at::Tensor& rows, int64_t quant_min,
                                                         int64_t quant_max, bool symmetric,
                                                         std::string_view scale_dtype) {
  if (!symmetric) {
    return search::qparams_of_range(rows.amin(1), rows.amax(1), quant_min, quant_max,
                                    /*symmetric=*/false, scale_dtype);
  }
  const auto magnitude = rows.abs();
  auto step = magnitude.mean(1) * 2.0 / std::pow(static_cast<double>(quant_max), 0.5);
  step = at::minimum(step, magnitude.amax(1) / quant_max);
  step = step.masked_fill(step == 0, 1.0);
  return {step, at::zeros_like(step)};
}

std::tuple<at::Tensor, at::Tensor> fitted_qparams(const at::Tensor& rows, int64_t quant_min,
                                                  int64_t quant_max, bool symmetric,
                                                  std::string_view scale_dtype,
                                                  std::string_view scale_rule) {
  const auto values = rows.to(compute_dtype(rows.scalar_type()));
  auto [scale, zero_point] = search::qparams_of_range(values.amin(1), values.amax(1), quant_min,
                                                      quant_max, symmetric, scale_dtype);
  if (scale_rule == "max") return {scale, zero_point};
  const auto [found, zeros, is_exact] =
      search::search_scale(rows, quant_min, quant_max, symmetric, scale_dtype,
                           /*importance=*/std::nullopt, scale_rule);
  if (quant_max - quant_min < 255) return {found, zeros};
  return {at::where(is_exact, found, scale), at::where(is_exact, zeros, zero_point)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> learned_int4_qparams(
    const at::Tensor& given, const at::Tensor& scale, const std::optional<at::Tensor>& zero_point,
    int64_t bits) {
  const auto [low, high] = ends_of(bits);
  const auto steps = given.detach(), rows = scale.detach();
  const auto factor = quantize_per_channel(steps, rows, std::nullopt, 0, 1, most_factor, at::kByte);
  auto is_known = steps.isfinite();
  auto zeros = at::full_like(factor, int4::kMiddle);
  if (zero_point.has_value()) {
    is_known = is_known & zero_point->isfinite();
    const auto shifted = zero_point->detach().round().clamp(low, high) + int4::kMiddle;
    zeros = shifted.nan_to_num(low + int4::kMiddle).to(at::kByte);
  }
  const auto unknown = is_known.all(1).logical_not();
  return {rows.masked_fill(unknown, std::numeric_limits<double>::quiet_NaN()), factor, zeros};
}

at::Tensor smooth_int4(const at::Tensor& input, const at::Tensor& given, const at::Tensor& scale,
                       const std::optional<at::Tensor>& zero_point, int64_t group_size,
                       int64_t bits) {
  const auto [least, most] = ends_of(bits);
  const auto factor = std::pow(static_cast<double>(group_size * most), -0.5);
  // The scale is a sixteenth of the parameter, and has 16 times the gradient's factor.
  const auto by_row = static_cast<double>(most_factor * most_factor) *
                      std::pow(static_cast<double>(given.size(1) * most_factor), -0.5);
  auto steps = fake_quantize_per_channel(given, with_gradient_factor(scale, by_row), std::nullopt,
                                         0, 1, most_factor);
  steps = with_gradient_factor(steps, factor);
  if (!zero_point.has_value()) {
    return fake_quantize_per_group(input, steps, std::nullopt, group_size, -1, least, most);
  }
  // A large factor has fewer integers with a zero point.
  const auto whole = std::get<1>(learned_int4_qparams(given, scale, zero_point, bits));
  const auto shifts = with_gradient_factor(*zero_point, factor);
  const auto nearest = shifts.detach().round().clamp(least, most);
  const auto zeros = (shifts + (nearest - shifts.detach())).unsqueeze(2);  // straight-through
  steps = steps.unsqueeze(2);
  const auto factors = whole.unsqueeze(2).to(steps.scalar_type());
  const auto values = input.to(steps.scalar_type()).unflatten(1, {given.size(1), group_size});
  const auto position = values / steps;
  const auto integers = position + (position.detach().round() - position.detach()) + zeros;
  const auto low = (zeros - (128.0 / factors).floor()).clamp_min(least);
  const auto high = (zeros + (127.0 / factors).floor()).clamp_max(most);
  const auto limited = at::clamp(integers, low, high);  // an end itself is inside
  return ((limited - zeros) * steps).flatten(1).to(input.scalar_type());
}

}  // namespace baraquant::nn
