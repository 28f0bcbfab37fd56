// SPDX-License-Identifier: BSD-3-Clause
#include "search/histogram.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "search/range.h"

namespace baraquant::search {

namespace {

constexpr int64_t mantissa_bits = 6;
constexpr int64_t shift = 23 - mantissa_bits;
constexpr int64_t bin_count = int64_t{1} << (9 + mantissa_bits);  // sign, exponent, mantissa
// The bins of one sign; those of exponent 255 are inf and NaN.
constexpr int64_t finite = int64_t{255} << mantissa_bits;
// The candidates of the least error go down to 2^-12 of the widest range.
constexpr int64_t octaves = 12;

// The lower edge, the upper edge and the count of nonempty bins, ascending: float64 `[B]` each, on
// the CPU. Infinities and NaN are left out.
struct Bins {
  at::Tensor low, high, count;
};

Bins bins_of(const at::Tensor& given) {
  const auto counts = given.cpu();
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

// The bins, cut at the minimum and the maximum. A bin with a single value keeps a width, because a
// formula divides by it.
Bins cut_bins(const at::Tensor& counts, double least, double most) {
  const auto bins = bins_of(counts);
  const auto low = bins.low.clamp_min(least), high = bins.high.clamp_max(most);
  const auto whole = low >= high;
  return {at::where(whole, bins.low, low), at::where(whole, bins.high, high), bins.count};
}

// The value below which `fraction` of all lie, if a bin's values are spread evenly.
double quantile(const Bins& bins, double fraction) {
  const auto total = bins.count.cumsum(0);
  const auto wanted = total[-1] * fraction;
  const auto index = at::searchsorted(total, wanted).clamp_max(total.size(0) - 1).item<int64_t>();
  const auto below = total[index] - bins.count[index];
  const auto share = ((wanted - below) / bins.count[index]).clamp(0.0, 1.0);
  return (bins.low[index] + share * (bins.high[index] - bins.low[index])).item<double>();
}

// The bins of the absolute values, ascending (the two signs stay separate bins).
Bins magnitudes(const Bins& bins) {
  const auto negative = bins.high <= 0;
  const auto low = at::where(negative, -bins.high, bins.low);
  const auto high = at::where(negative, -bins.low, bins.high);
  const auto order = at::argsort(low, /*stable=*/true, /*dim=*/-1, /*descending=*/false);
  return {low.index({order}), high.index({order}), bins.count.index({order})};
}

// The sum of the squared quantization errors for each candidate: scales, float64, and zero points,
// `[S]`. It is exact if values are spread evenly within their bin. With n(t), the grid point next to
// t, the squared error (t - s n(t))^2 has the antiderivative F(t) = n s^3 / 12 + (t - s n)^3 / 3,
// continuous where n steps, and beyond the clamps.
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

using Errors = std::function<at::Tensor(const at::Tensor& candidates)>;  // [S, 2] to [S]

// The ends, with the `moved` ones scaled by the factor of minimum error.
at::Tensor narrowed(const at::Tensor& ends, const at::Tensor& moved, const Errors& errors) {
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

at::Tensor histogram(const at::Tensor& given) {
  auto values = given.detach().reshape(-1);
  if (values.scalar_type() == at::kDouble) {
    const double largest = std::numeric_limits<float>::max();
    values = values.clamp(-largest, largest);
  }
  const auto bits = values.to(at::kFloat).view(at::kInt);
  const auto index = at::bitwise_right_shift(bits, shift).bitwise_and(bin_count - 1);
  return at::bincount(index, {}, bin_count);
}

std::tuple<double, double> percentile_range(const at::Tensor& counts, const at::Tensor& min_val,
                                            const at::Tensor& max_val, double percentile,
                                            bool symmetric) {
  const auto least = min_val.item<double>(), most = max_val.item<double>();
  const double fraction = percentile / 100;
  if (fraction == 1.0) return {least, most};
  const auto bins = cut_bins(counts, least, most);
  if (symmetric) {
    const double widest = std::min(quantile(magnitudes(bins), fraction), std::max(-least, most));
    return {-widest, widest};
  }
  const double low = quantile(bins, (1 - fraction) / 2), high = quantile(bins, (1 + fraction) / 2);
  return {std::max(low, least), std::min(high, most)};
}

std::tuple<double, double> least_error_range(const at::Tensor& counts, const at::Tensor& min_val,
                                             const at::Tensor& max_val, int64_t quant_min,
                                             int64_t quant_max, bool symmetric) {
  auto least = min_val.item<double>(), most = max_val.item<double>();
  const auto bins = cut_bins(counts, least, most);
  least = std::min(least, 0.0), most = std::max(most, 0.0);
  if (symmetric) most = std::max(-least, most), least = -most;
  const Errors errors = [&](const at::Tensor& candidates) {
    const auto [scale, zero_point] = qparams_of_range(
        candidates.select(1, 0), candidates.select(1, 1), quant_min, quant_max, symmetric);
    return squared_error(bins, scale, zero_point, quant_min, quant_max);
  };
  const auto both = at::ones({2}, at::kBool);
  auto ends = narrowed(at::tensor({least, most}, at::kDouble), both, errors);
  if (!symmetric) {
    const auto first = at::tensor({1, 0}).to(at::kBool), second = at::tensor({0, 1}).to(at::kBool);
    for (const auto& moved : {first, second, first, second}) ends = narrowed(ends, moved, errors);
  }
  return {ends[0].item<double>(), ends[1].item<double>()};
}

}  // namespace baraquant::search
