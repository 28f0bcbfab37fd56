// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/observers.h"

#include <ATen/ATen.h>

#include <limits>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "search/histogram.h"
#include "search/range.h"

namespace baraquant::workflow {

namespace {

constexpr double percentile = 99.99;

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
                   averages ? std::optional(search::kAveragingConstant) : std::nullopt, skipped_);
  if (follows_training(name_)) return;
  const auto counts = search::histogram(input) * (skipped_ == before);
  counts_ = counts_.defined() ? counts_ + counts : counts;
}

bool Observer::is_finite() const { return (min_val_ + max_val_ * 0).isfinite().item<bool>(); }

std::tuple<at::Tensor, at::Tensor> Observer::range(int64_t quant_min, int64_t quant_max,
                                                   bool symmetric) const {
  if (follows_training(name_)) return {min_val_, max_val_};
  const auto [low, high] =
      name_ == "percentile"
          ? search::percentile_range(counts_, min_val_, max_val_, percentile, symmetric)
          : search::least_error_range(counts_, min_val_, max_val_, quant_min, quant_max, symmetric);
  // As in Python, where a number becomes a float32 tensor first.
  return {at::full({}, low, at::kFloat).to(min_val_.options()),
          at::full({}, high, at::kFloat).to(min_val_.options())};
}

std::tuple<at::Tensor, at::Tensor> Observer::qparams(int64_t quant_min, int64_t quant_max,
                                                     bool symmetric) const {
  const auto [low, high] = range(quant_min, quant_max, symmetric);
  return search::qparams_of_range(low, high, quant_min, quant_max, symmetric);
}

}  // namespace baraquant::workflow
