// SPDX-License-Identifier: BSD-3-Clause
// A weight w that was rounded to its dtype from q * s lies within half a unit in its last place of
// q * s. So q and w bound s: (|w| - half) / |q| <= s <= (|w| + half) / |q|.
//
// The least magnitude of a row has a small integer: 1, 2, 3, ... are tried for it. Each gives an
// interval for s, the interval gives the integers of the other weights, and these narrow it. What is
// left is empty, or holds few numbers of 8 and of 11 bits. These are tried by the ops themselves.
#include "search/lattice.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "search/range.h"

namespace baraquant::search {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// The number of elements at a time, so that the temporaries stay small.
constexpr int64_t at_a_time = int64_t{1} << 20;
// Of longer rows the distinct values are looked at.
constexpr int64_t longest = int64_t{1} << 16;
constexpr int64_t sampled_rows = 8, sampled_values = 256;
// A row counts as evidence if the chance is below 2^-20 that it is exact.
constexpr int64_t least_evidence = 20;

struct Format {
  int64_t digits;  // significant bits
  double least;    // the smallest positive number
  double slack;    // above the relative error of a product that is rounded to float32 first
};

Format format_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return {8, 0x1p-133, 0x1p-22};
  if (dtype == at::kHalf) return {11, 0x1p-24, 0x1p-22};
  if (dtype == at::kFloat) return {24, 0x1p-149, 0x1p-40};
  return {53, 0x1p-1074, 0x1p-51};
}

at::Tensor where_true(const at::Tensor& mask) { return mask.nonzero().squeeze(1); }

// Rows of one dtype, and what is found of them.
class Rows {
 public:
  Rows(const at::Tensor& rows, const Grid& grid)
      : rows_(rows),
        grid_(grid),
        format_(format_of(rows.scalar_type())),
        most_(grid.symmetric ? -grid.quant_min : grid.quant_max - grid.quant_min) {
    const auto options = rows.options();
    const auto count = rows.size(0);
    found_.scale = at::ones({count}, options.dtype(compute_dtype(rows.scalar_type())));
    found_.zero_point = at::zeros({count}, options.dtype(at::kInt));
    found_.is_exact = at::zeros({count}, options.dtype(at::kBool));
  }

  // Stops as soon as less than `needed` rows can be exact.
  Lattice find(int64_t needed = 0) {
    const auto magnitudes = rows_.to(at::kDouble).abs();
    const auto largest = magnitudes.amax(1);
    const auto least = magnitudes.masked_fill(magnitudes == 0, infinity).amin(1);
    found_.is_exact.copy_(largest == 0);
    auto open = where_true((largest > 0) & largest.isfinite());
    // How many times larger the largest integer may be than the least; a margin for two roundings.
    const auto reach = least * (static_cast<double>(most_) * (1 + 0x1p-6)) / largest;
    for (int64_t integer = 1; integer <= most_; ++integer) {
      open = open.index_select(0, where_true(reach.index_select(0, open) >= integer));
      const auto known = needed > 0 ? found_.is_exact.sum().item<int64_t>() : 0;
      if (open.numel() == 0 || open.numel() + known < needed) break;
      try_integer(open, magnitudes.index_select(0, open), least.index_select(0, open), integer);
      open = open.index_select(0, where_true(~found_.is_exact.index_select(0, open)));
    }
    return found_;
  }

 private:
  // The bounds of the magnitudes before they were rounded.
  struct Bounds {
    at::Tensor magnitude, low, high;

    Bounds of(const at::Tensor& rows) const {
      const auto at_rows = [&](const at::Tensor& all) { return all.index_select(0, rows); };
      return {at_rows(magnitude), at_rows(low), at_rows(high)};
    }
  };

  // An interval for the scale of each row.
  struct Interval {
    at::Tensor low, high;

    at::Tensor middle() const { return (low + high) * 0.5; }
    Interval of(const at::Tensor& rows) const {
      return {low.index_select(0, rows), high.index_select(0, rows)};
    }
  };

  Bounds bounds_of(const at::Tensor& magnitude) const {
    const auto power = power_to_one(magnitude);
    const auto half = std::ldexp(1.0, -static_cast<int>(format_.digits)) / power;
    // Below a power of two the numbers are twice as dense.
    const auto below = at::where(magnitude * power == 1, half * 0.5, half);
    const auto low = magnitude - below.clamp_min(format_.least / 2);
    const auto high = magnitude + half.clamp_min(format_.least / 2);
    return {magnitude, low * (1 - format_.slack), high * (1 + format_.slack)};
  }

  // The part of an interval that gives every weight with an integer up to `largest` its magnitude.
  // The integers are those of the scale `near`.
  static Interval narrowed(const Interval& scales, const Bounds& weights, const at::Tensor& near,
                           int64_t largest) {
    const auto integers = (weights.magnitude / near.unsqueeze(1)).round();
    const auto is_used = (integers > 0) & (integers <= largest);
    const auto low = at::where(is_used, weights.low / integers, 0.0).amax(1);
    const auto high = at::where(is_used, weights.high / integers, infinity).amin(1);
    return {at::maximum(scales.low, low), at::minimum(scales.high, high)};
  }

  // Whether the numbers of the weight's dtype are so far apart that an interval from the least weight
  // leaves the larger integers open.
  bool is_coarse() const { return format_.digits == 8; }

  // Try an integer for the least magnitudes of some rows.
  void try_integer(const at::Tensor& rows, const at::Tensor& magnitudes, const at::Tensor& least,
                   int64_t integer) {
    const auto ends = bounds_of(least);
    // By a tensor: a GPU divides by a number as it multiplies by the inverse.
    const auto divisor = at::full_like(least, integer);
    Interval scales{ends.low / divisor, ends.high / divisor};
    auto weights = bounds_of(magnitudes);
    auto near = least / divisor;
    for (const int64_t largest : {int64_t{32}, int64_t{64}}) {
      scales = narrowed(scales, weights, near, is_coarse() ? largest : most_);
      near = scales.middle();
      if (!is_coarse()) break;
    }
    const auto possible = where_true(scales.low <= scales.high);
    if (possible.numel() == 0) return;
    weights = weights.of(possible);
    scales = scales.of(possible);
    try_scales(rows.index_select(0, possible), weights, scales);
  }

  void try_scales(const at::Tensor& rows, const Bounds& weights, const Interval& scales) {
    auto open = at::arange(rows.size(0), rows.options());
    const bool is_half = grid_.scale_dtype == "float16";
    for (const int digits : {8, 11}) {
      if (digits == 11 && grid_.scale_dtype == "bfloat16") continue;
      auto step = std::ldexp(1.0, 1 - digits) / power_to_one(scales.low);
      if (is_half) step = step.clamp_min(0x1p-24);
      auto scale = (scales.low / step).ceil() * step;
      for (; open.numel() > 0; scale = scale + step) {
        const auto inside = (scale <= scales.high).index_select(0, open);
        const auto tried = open.index_select(0, where_true(inside));
        if (tried.numel() == 0) break;
        attempt(rows.index_select(0, tried), scale.index_select(0, tried));
        open = still_open(open, rows);
      }
    }
    if (grid_.scale_dtype != "float32") return;
    // All digits: the middle, whose neighbours are as good unless the interval is as small as they.
    const int digits = found_.scale.scalar_type() == at::kDouble ? 53 : 24;
    const bool is_open = is_coarse() && most_ > 64;  // Whether the largest integers are not known.
    for (int64_t i = 0; i < (is_open ? 9 : 1) && open.numel() > 0; ++i) {
      auto parts = scales.of(open);
      if (is_open) {
        const double share = static_cast<double>(i) / 8;
        const auto near = parts.low * (1 - share) + parts.high * share;
        parts = narrowed(parts, weights.of(open), near, most_);
      }
      const auto middle = parts.middle();
      const auto step = std::ldexp(1.0, 1 - digits) / power_to_one(middle);
      const auto first = (middle / step).floor();
      const auto own = rows.index_select(0, open);
      for (const int64_t offset : {0, 1, -1, 2}) {
        if (digits == 24 && offset != 0 && offset != 1) continue;
        const auto left = where_true(~found_.is_exact.index_select(0, own));
        if (left.numel() == 0) break;
        attempt(own.index_select(0, left), ((first + offset) * step).index_select(0, left));
      }
      open = still_open(open, rows);
    }
  }

  at::Tensor still_open(const at::Tensor& open, const at::Tensor& rows) const {
    const auto exact = found_.is_exact.index_select(0, rows.index_select(0, open));
    return open.index_select(0, where_true(~exact));
  }

  // Try a scale for each of some rows, and keep those that are exact.
  void attempt(const at::Tensor& rows, const at::Tensor& given) {
    const auto scale = rounded_scale(given.to(found_.scale.scalar_type()), grid_.scale_dtype);
    const auto weights = rows_.index_select(0, rows);
    auto zeros = at::zeros_like(scale);
    if (!grid_.symmetric) {
      const auto [low, high] = at::aminmax(weights.to(scale.scalar_type()), 1);
      const auto least = at::rsub((low / scale).round(), grid_.quant_min);
      const auto most = at::rsub((high / scale).round(), grid_.quant_max);
      zeros = at::minimum(at::maximum(zeros, least), most);
      zeros = zeros.clamp(grid_.quant_min, grid_.quant_max);
    }
    const auto zero_point = zeros.to(at::kInt);
    const auto rounded =
        fake_quantize_per_channel(weights, scale, zero_point, 0, grid_.quant_min, grid_.quant_max);
    const auto exact = where_true((rounded == weights).all(1));
    const auto found = rows.index_select(0, exact);
    found_.scale.index_copy_(0, found, scale.index_select(0, exact));
    found_.zero_point.index_copy_(0, found, zero_point.index_select(0, exact));
    found_.is_exact.index_fill_(0, found, true);
  }

  at::Tensor rows_;
  Grid grid_;
  Format format_;
  int64_t most_;  // the largest magnitude of an integer
  Lattice found_;
};

void put(Lattice& found, const at::Tensor& rows, const Lattice& part) {
  found.scale.index_copy_(0, rows, part.scale.to(found.scale.scalar_type()));
  found.zero_point.index_copy_(0, rows, part.zero_point);
  found.is_exact.index_copy_(0, rows, part.is_exact);
}

// Takes back what chance explains: a number of `digits` bits is near one of the lattice with a
// probability of about 2^(bits - digits - 1).
void keep_evident(Lattice& found, const at::Tensor& rows, const Grid& grid) {
  const auto bits = static_cast<int64_t>(std::log2(grid.quant_max - grid.quant_min + 1));
  const auto each = format_of(rows.scalar_type()).digits + 1 - bits;
  const auto count = (rows != 0).sum(1);
  found.is_exact.logical_and_((count == 0) | ((count - 1) * each >= least_evidence));
}

Lattice find(const at::Tensor& rows, const Grid& grid, bool is_sample) {
  if (rows.size(1) > longest) {
    std::vector<at::Tensor> scales, zero_points, exact;
    for (const auto& row : rows.split(1)) {
      const auto values = std::get<0>(at::_unique2(row));
      auto one = find(values.slice(0, 0, longest).unsqueeze(0), grid, is_sample);
      if (values.numel() > grid.quant_max - grid.quant_min + 1) one.is_exact.zero_();
      scales.push_back(one.scale);
      zero_points.push_back(one.zero_point);
      exact.push_back(one.is_exact);
    }
    return {at::cat(scales), at::cat(zero_points), at::cat(exact)};
  }
  auto found = Rows(rows, grid).find(is_sample ? (rows.size(0) + 1) / 2 : 0);
  if (is_sample) keep_evident(found, rows, grid);
  if (rows.scalar_type() != at::kFloat) return found;
  for (const auto narrow : {at::kBFloat16, at::kHalf}) {
    const auto values = rows.to(narrow);
    const auto held = where_true((values.to(at::kFloat) == rows).all(1) & ~found.is_exact);
    if (held.numel() == 0) continue;
    auto part = Rows(values.index_select(0, held), grid).find();
    if (is_sample) keep_evident(part, values.index_select(0, held), grid);
    put(found, held, part);
  }
  return found;
}

// Whether a few rows are on a lattice, by a few of their values.
bool is_likely(const at::Tensor& rows, const Grid& grid) {
  auto sample = rows;
  if (rows.size(0) > sampled_rows) {
    const auto number = at::arange(sampled_rows, rows.options().dtype(at::kLong));
    const auto places = (number * (rows.size(0) - 1)).floor_divide(sampled_rows - 1);
    sample = sample.index_select(0, places);
  }
  const auto step = (rows.size(1) + sampled_values - 1) / sampled_values;
  sample = sample.slice(1, 0, std::nullopt, step);
  sample = sample.index_select(0, where_true((sample != 0).any(1)));
  if (sample.size(0) == 0) return false;
  const auto exact = find(sample, grid, /*is_sample=*/true).is_exact.sum().item<int64_t>();
  return exact > 0 && 2 * exact >= sample.size(0);
}

}  // namespace

Lattice find_lattice(const at::Tensor& rows, const Grid& grid, bool every) {
  const auto options = rows.options();
  const auto count = rows.size(0), columns = rows.size(1);
  if (rows.numel() == 0 || rows.is_meta() || !(every || is_likely(rows, grid))) {
    const auto none = at::zeros({count}, options.dtype(at::kBool));
    const auto ones = at::ones({count}, options.dtype(compute_dtype(rows.scalar_type())));
    return {ones, at::zeros({count}, options.dtype(at::kInt)), none};
  }
  std::vector<at::Tensor> scales, zero_points, exact;
  for (const auto& part : rows.split(std::max<int64_t>(1, at_a_time / columns))) {
    const auto found = find(part, grid, /*is_sample=*/false);
    scales.push_back(found.scale);
    zero_points.push_back(found.zero_point);
    exact.push_back(found.is_exact);
  }
  return {at::cat(scales), at::cat(zero_points), at::cat(exact)};
}

}  // namespace baraquant::search
