// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/observers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "nn/range.h"

namespace baraquant::workflow {

namespace {

constexpr double percentile = 99.99;
// The candidates of "mse" go down to 2^-12 of the widest range.
constexpr int64_t octaves = 12;

using Errors = std::function<at::Tensor(const at::Tensor& candidates)>;  // [S, 2] to [S]

// The ends, with the `moved` ones scaled by the factor of minimum error: first in steps of a quarter
// of an octave, then in finer ones.
at::Tensor narrow(const at::Tensor& ends, const at::Tensor& moved, const Errors& errors) {
  auto best = at::ones({}, at::kDouble);
  const auto coarse = at::linspace(0, -octaves, 4 * octaves + 1, at::kDouble);
  const auto fine = at::linspace(0.25, -0.25, 17, at::kDouble);
  for (const auto& exponents : {coarse, fine}) {
    const auto factors = (best * at::exp2(exponents)).clamp_max(1.0);
    const auto candidates = at::where(moved, ends * factors.unsqueeze(1), ends);
    best = factors[errors(candidates).argmin().item<int64_t>()];
  }
  return at::where(moved, ends * best, ends);
}

}  // namespace

bool follows_training(const std::string& observer) {
  return observer == "min_max" || observer == "moving_average";
}

void Observer::observe(at::Tensor input) {
  if (input.numel() == 0) return;
  input = input.detach();
  const bool is_double = input.scalar_type() == at::kDouble;
  if (!is_reached()) {
    const auto options = input.options().dtype(compute_dtype(input.scalar_type()));
    const auto infinity = std::numeric_limits<double>::infinity();
    min_val_ = at::full({}, infinity, options);
    max_val_ = at::full({}, -infinity, options);
    skipped_ = at::zeros({}, options.dtype(at::kLong));
  } else if (is_double != (min_val_.scalar_type() == at::kDouble)) {
    input = input.to(min_val_.scalar_type());
  }
  input = input.to(min_val_.device());
  const auto before = skipped_.clone();
  const bool averages = name_ == "moving_average";
  observe_min_max_(input, min_val_, max_val_, std::nullopt,
                   averages ? std::optional(nn::kAveragingConstant) : std::nullopt, skipped_);
  if (follows_training(name_)) return;
  if (!histogram_.has_value()) histogram_.emplace(input.device());
  histogram_->add(input, skipped_ == before);
}

bool Observer::is_finite() const { return (min_val_ + max_val_ * 0).isfinite().item<bool>(); }

std::tuple<at::Tensor, at::Tensor> Observer::range(int64_t quant_min, int64_t quant_max,
                                                   bool symmetric) const {
  if (follows_training(name_)) return {min_val_, max_val_};
  const auto [low, high] = name_ == "percentile" ? percentile_ends(symmetric)
                                                 : mse_ends(quant_min, quant_max, symmetric);
  // As in Python, where a number becomes a float32 tensor first.
  return {at::full({}, low, at::kFloat).to(min_val_.options()),
          at::full({}, high, at::kFloat).to(min_val_.options())};
}

Bins Observer::cut_bins() const {
  const auto bins = histogram_->bins();
  // All values lie between the minimum and the maximum, so the outermost bins end there. A bin with a
  // single value keeps a width, because a formula divides by it.
  const auto low = bins.low.clamp_min(min_val_.item<double>());
  const auto high = bins.high.clamp_max(max_val_.item<double>());
  const auto whole = low >= high;
  return {at::where(whole, bins.low, low), at::where(whole, bins.high, high), bins.count};
}

std::tuple<double, double> Observer::percentile_ends(bool symmetric) const {
  const auto bins = cut_bins();
  const double least = min_val_.item<double>(), most = max_val_.item<double>();
  const double fraction = percentile / 100;
  if (symmetric) {
    const double widest = std::min(quantile(magnitudes(bins), fraction), std::max(-least, most));
    return {-widest, widest};
  }
  const double low = quantile(bins, (1 - fraction) / 2), high = quantile(bins, (1 + fraction) / 2);
  return {std::max(low, least), std::min(high, most)};
}

std::tuple<double, double> Observer::mse_ends(int64_t quant_min, int64_t quant_max,
                                              bool symmetric) const {
  const auto bins = cut_bins();
  double least = std::min(min_val_.item<double>(), 0.0);
  double most = std::max(max_val_.item<double>(), 0.0);
  if (symmetric) {
    most = std::max(-least, most);
    least = -most;
  }
  const Errors errors = [&](const at::Tensor& candidates) {
    const auto [scale, zero_point] = nn::qparams_of_range(
        candidates.select(1, 0), candidates.select(1, 1), quant_min, quant_max, symmetric);
    return squared_error(bins, scale, zero_point, quant_min, quant_max);
  };
  const auto both = at::ones({2}, at::kBool);
  auto ends = narrow(at::tensor({least, most}, at::kDouble), both, errors);
  if (!symmetric) {
    const auto first = at::tensor({1, 0}).to(at::kBool), second = at::tensor({0, 1}).to(at::kBool);
    for (const auto& moved : {first, second, first, second}) ends = narrow(ends, moved, errors);
  }
  return {ends[0].item<double>(), ends[1].item<double>()};
}

}  // namespace baraquant::workflow
