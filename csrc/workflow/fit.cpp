// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/fit.h"

#include <algorithm>
#include <limits>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "nn/int4_search.h"
#include "nn/range.h"

namespace baraquant::workflow {

namespace {

constexpr int64_t candidates = 26;
// The number of elements at a time, so that the temporaries stay small.
constexpr int64_t chunk = int64_t{1} << 22;

// The scale and the zero point of each row.
std::tuple<torch::Tensor, torch::Tensor> fit_segments(const torch::Tensor& segments,
                                                      const nn::FakeQuantizeOptions& options) {
  const auto low_end = options.quant_min(), high_end = options.quant_max();
  const auto values = segments.to(compute_dtype(segments.scalar_type()));
  const auto [low, high] = torch::aminmax(values, 1);
  auto best = torch::full_like(low, std::numeric_limits<double>::infinity());
  const auto power = nn::power_to_one(torch::maximum(low.abs(), high.abs()));
  const auto near_one = values * power.unsqueeze(1);
  auto [scale, zero_point] = nn::qparams_of_range(low, high, low_end, high_end, options.symmetric(),
                                                  options.scale_dtype());
  for (int64_t step = 0; step < candidates; ++step) {
    const auto factor = 1.0 - static_cast<double>(step) / 50;
    const auto [tried, zeros] = nn::qparams_of_range(low * factor, high * factor, low_end, high_end,
                                                     options.symmetric(), options.scale_dtype());
    const auto rounded =
        fake_quantize_per_channel(near_one, tried * power, zeros, 0, low_end, high_end);
    const auto error = (rounded - near_one).square_().sum(1);
    const auto is_better = error < best;
    best = torch::where(is_better, error, best);
    scale = torch::where(is_better, tried, scale);
    zero_point = torch::where(is_better, zeros, zero_point);
  }
  return {scale, zero_point};
}

}  // namespace

std::shared_ptr<nn::FakeQuantizeInt4Impl> fit_factors(const torch::Tensor& rows,
                                                      const nn::FakeQuantizeInt4Impl& quantizer) {
  auto options = quantizer.options;
  const auto best = nn::searched_factors(rows, options.group_size(), options.symmetric());
  options.scale(best.scale).group_factor(best.group_factor);
  options.group_zero_point(best.group_zero_point);
  return std::make_shared<nn::FakeQuantizeInt4Impl>(options);
}

std::shared_ptr<nn::Quantizer> fit(const torch::Tensor& rows, const nn::Quantizer& quantizer) {
  if (const auto* int4 = dynamic_cast<const nn::FakeQuantizeInt4Impl*>(&quantizer)) {
    return fit_factors(rows, *int4);
  }
  return fit_scale(rows, dynamic_cast<const nn::FakeQuantizeImpl&>(quantizer));
}

std::shared_ptr<nn::FakeQuantizeImpl> fit_scale(const torch::Tensor& rows,
                                                const nn::FakeQuantizeImpl& quantizer) {
  auto options = quantizer.options;
  const auto size = options.group_size().value_or(0);
  std::vector<int64_t> shape = {rows.size(0)};
  if (options.granularity() == "per_tensor") shape = {};
  if (options.granularity() == "per_group") shape = {rows.size(0), -1};
  const auto segments =
      size > 0 ? rows.reshape({-1, size}) : rows.reshape({shape.empty() ? 1 : rows.size(0), -1});
  const auto step = std::max<int64_t>(1, chunk / std::max<int64_t>(1, segments.size(1)));
  std::vector<torch::Tensor> scales, zero_points;
  for (const auto& part : segments.split(step)) {
    const auto [scale, zero_point] = fit_segments(part, options);
    scales.push_back(scale);
    zero_points.push_back(zero_point);
  }
  options.mode("fixed").symmetric(true);
  options.scale(torch::cat(scales).reshape(shape));
  options.zero_point(torch::cat(zero_points).reshape(shape));
  return std::make_shared<nn::FakeQuantizeImpl>(options);
}

}  // namespace baraquant::workflow
