// SPDX-License-Identifier: BSD-3-Clause
#include "search/scale.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "search/range.h"

namespace baraquant::search {

namespace {

constexpr int64_t candidates = 26;
// The number of elements at a time, so that the temporaries stay small.
constexpr int64_t chunk = int64_t{1} << 22;

}  // namespace

std::tuple<at::Tensor, at::Tensor> search_scale(const at::Tensor& rows, int64_t quant_min,
                                                int64_t quant_max, bool symmetric,
                                                std::string_view scale_dtype,
                                                const std::optional<at::Tensor>& importance) {
  const auto qparams_of = [&](const at::Tensor& low, const at::Tensor& high) {
    return qparams_of_range(low, high, quant_min, quant_max, symmetric, scale_dtype);
  };
  const int64_t repeated = importance ? std::max<int64_t>(1, importance->size(0)) : 1;
  const int64_t step = std::max<int64_t>(1, chunk / std::max<int64_t>(1, rows.size(1) * repeated));
  std::vector<at::Tensor> scales, zero_points;
  for (const auto& part : rows.split(step * repeated)) {
    const auto values = part.to(compute_dtype(part.scalar_type()));
    const auto [low, high] = at::aminmax(values, 1);
    auto best = at::full_like(low, std::numeric_limits<double>::infinity());
    // Errors are compared where the largest value is near 1: their squares neither overflow nor
    // vanish, and neither do the products with the importance, whose size alone does not count.
    const auto power = power_to_one(at::maximum(low.abs(), high.abs()));
    const auto near_one = values * power.unsqueeze(1);
    at::Tensor weights;
    if (importance) {
      weights = importance->to(values.options());
      weights = weights * power_to_one(weights.amax(1, /*keepdim=*/true));
      weights = weights.repeat({values.size(0) / repeated, 1});
    }
    auto [scale, zero_point] = qparams_of(low, high);
    for (int64_t i = 0; i < candidates; ++i) {
      const double factor = 1.0 - static_cast<double>(i) / 50;
      const auto [tried, zeros] = qparams_of(low * factor, high * factor);
      const auto rounded =
          fake_quantize_per_channel(near_one, tried * power, zeros, 0, quant_min, quant_max);
      auto squares = (rounded - near_one).square_();
      if (importance) squares.mul_(weights);
      const auto error = squares.sum(1);
      const auto is_better = error < best;
      best = at::where(is_better, error, best);
      scale = at::where(is_better, tried, scale);
      zero_point = at::where(is_better, zeros, zero_point);
    }
    scales.push_back(scale);
    zero_points.push_back(zero_point);
  }
  return {at::cat(scales), at::cat(zero_points)};
}

}  // namespace baraquant::search
