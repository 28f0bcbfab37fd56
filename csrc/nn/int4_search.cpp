// SPDX-License-Identifier: BSD-3-Clause
#include "nn/int4_search.h"

#include <algorithm>
#include <array>
#include <limits>

#include "api/ops.h"
#include "nn/range.h"

namespace baraquant::nn {

namespace {

// The number of elements at a time, so that the temporaries stay small.
constexpr int64_t chunk = int64_t{1} << 22;

// The scale, the factors and the zero points of some rows.
PackedInt4 of_chunk(const torch::Tensor& rows, int64_t size, bool symmetric) {
  PackedInt4 best;
  std::tie(best.scale, best.group_factor, best.group_zero_point) =
      choose_int4_qparams(rows, size, symmetric);
  const auto values = rows.to(best.scale.scalar_type()).unflatten(1, {-1, size});
  const auto [least, most] = values.aminmax(2);
  const auto low = least.clamp_max(0), high = most.clamp_min(0);
  const auto scale = best.scale.unsqueeze(1);
  const auto power = power_to_one(best.scale).unsqueeze(1);
  const auto near_one = values * power.unsqueeze(2);
  const auto scale_near_one = (scale * power).unsqueeze(2);
  auto least_error = torch::full_like(low, std::numeric_limits<double>::infinity());
  best.group_factor = torch::ones_like(best.group_factor);
  best.group_zero_point = torch::full_like(best.group_zero_point, 8);
  for (int64_t number = 16; number > 0; --number) {
    const auto factors = torch::full_like(best.group_factor, number);
    const auto step = scale * number;
    const std::array positions = {-low / step, 7.5 - (low + high) / (2 * step)};
    for (size_t i = 0; i < (symmetric ? 1 : positions.size()); ++i) {
      auto zeros = positions[i].round().nan_to_num(0.0).clamp(0, 15).to(torch::kByte);
      if (symmetric) zeros.fill_(8);
      const auto packed = quantize_int4(rows, best.scale, factors, size, zeros);
      const auto rounded = expand_int4(packed, factors, size, rows.size(1), zeros);
      const auto back = rounded.unflatten(1, {-1, size}) * scale_near_one;
      const auto error = (back - near_one).square_().sum(2);
      const auto is_better = error < least_error;
      least_error = torch::where(is_better, error, least_error);
      best.group_factor = torch::where(is_better, factors, best.group_factor);
      best.group_zero_point = torch::where(is_better, zeros, best.group_zero_point);
    }
  }
  return best;
}

}  // namespace

PackedInt4 searched_factors(const torch::Tensor& rows, int64_t group_size, bool symmetric) {
  const auto step = std::max<int64_t>(1, chunk / std::max<int64_t>(1, rows.size(1)));
  std::vector<torch::Tensor> scales, factors, zero_points;
  for (const auto& part : rows.split(step)) {
    const auto found = of_chunk(part, group_size, symmetric);
    scales.push_back(found.scale);
    factors.push_back(found.group_factor);
    zero_points.push_back(found.group_zero_point);
  }
  return {{}, torch::cat(scales), torch::cat(factors), torch::cat(zero_points)};
}

}  // namespace baraquant::nn
