// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/histogram.h"

#include <ATen/ATen.h>

#include <limits>

namespace baraquant::workflow {

namespace {

constexpr int64_t mantissa_bits = 6;
constexpr int64_t shift = 23 - mantissa_bits;
constexpr int64_t bin_count = int64_t{1} << (9 + mantissa_bits);  // sign, exponent, mantissa
// The bins of one sign; those of exponent 255 are inf and NaN.
constexpr int64_t finite = int64_t{255} << mantissa_bits;

}  // namespace

Histogram::Histogram(at::Device device)
    : counts_(at::zeros({bin_count}, at::TensorOptions().dtype(at::kLong).device(device))) {}

void Histogram::add(const at::Tensor& given, const at::Tensor& where) {
  auto values = given.detach().reshape(-1);
  if (values.scalar_type() == at::kDouble) {
    const double largest = std::numeric_limits<float>::max();
    values = values.clamp(-largest, largest);
  }
  const auto bits = values.to(at::kFloat).view(at::kInt);
  const auto index = at::bitwise_right_shift(bits, shift).bitwise_and(bin_count - 1);
  counts_ += at::bincount(index, {}, bin_count) * where;
}

Bins Histogram::bins() const {
  const auto counts = counts_.cpu();
  auto edges = at::bitwise_left_shift(at::arange(finite + 1, at::kInt), shift);
  edges = edges.view(at::kFloat).to(at::kDouble);
  edges[finite].fill_(0x1p128);
  const int64_t half = bin_count / 2;
  const auto lower = edges.slice(0, 0, finite), upper = edges.slice(0, 1);
  const auto low = at::cat({-upper.flip(0), lower});
  const auto high = at::cat({-lower.flip(0), upper});
  const auto count =
      at::cat({counts.slice(0, half, half + finite).flip(0), counts.slice(0, 0, finite)});
  const auto held = count > 0;
  return {low.index({held}), high.index({held}), count.index({held}).to(at::kDouble)};
}

double quantile(const Bins& bins, double fraction) {
  const auto total = bins.count.cumsum(0);
  const auto wanted = total[-1] * fraction;
  const auto index = at::searchsorted(total, wanted).clamp_max(total.size(0) - 1).item<int64_t>();
  const auto below = total[index] - bins.count[index];
  const auto share = ((wanted - below) / bins.count[index]).clamp(0.0, 1.0);
  return (bins.low[index] + share * (bins.high[index] - bins.low[index])).item<double>();
}

Bins magnitudes(const Bins& bins) {
  const auto negative = bins.high <= 0;
  const auto low = at::where(negative, -bins.high, bins.low);
  const auto high = at::where(negative, -bins.low, bins.high);
  const auto order = at::argsort(low, /*stable=*/true, /*dim=*/-1, /*descending=*/false);
  return {low.index({order}), high.index({order}), bins.count.index({order})};
}

// With n(t), the grid point next to t, the squared error (t - s n(t))^2 has the antiderivative
// F(t) = n s^3 / 12 + (t - s n)^3 / 3, continuous where n steps, and beyond the clamps.
at::Tensor squared_error(const Bins& bins, const at::Tensor& scales, const at::Tensor& zero_points,
                         int64_t quant_min, int64_t quant_max) {
  const auto scale = scales.unsqueeze(1), zeros = zero_points.unsqueeze(1).to(at::kDouble);
  const auto antiderivative = [&](const at::Tensor& t) {  // [S, B]
    auto n = (t / scale).round();
    n = at::minimum(at::maximum(n, at::rsub(zeros, quant_min)), at::rsub(zeros, quant_max));
    return n * scale.pow(3) / 12 + (t - n * scale).pow(3) / 3;
  };
  const auto mean = (antiderivative(bins.high) - antiderivative(bins.low)) / (bins.high - bins.low);
  return (mean.clamp_min(0.0) * bins.count).sum(1);
}

}  // namespace baraquant::workflow
