// SPDX-License-Identifier: BSD-3-Clause
#include "search/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "int4/math.h"
#include "search/lattice.h"
#include "search/range.h"

namespace baraquant::search {

namespace {

// Half of the largest number of four bits, and the middle of those of a narrower width too.
constexpr double middle = int4::kLargest / 2.0;
// The number of elements at a time, so that the temporaries stay small.
constexpr int64_t chunk = int64_t{1} << 22;

// The number of ranges that are tried: down to half of the full one; with at most three bits, whose
// error of rounding is larger beside that of clipping, to a fifth.
int64_t candidates(const Grid& grid) { return grid.quant_max - grid.quant_min < 8 ? 41 : 26; }

// Of some ranges of each row the one with the least squared error.
std::tuple<at::Tensor, at::Tensor> search_ranges(const at::Tensor& rows, const Grid& grid,
                                                 const std::optional<at::Tensor>& importance) {
  const auto qparams_of = [&](const at::Tensor& low, const at::Tensor& high) {
    return qparams_of_range(low, high, grid.quant_min, grid.quant_max, grid.symmetric,
                            grid.scale_dtype);
  };
  if (grid.quant_max - grid.quant_min == 255) {
    const auto values = rows.size(1) > 0 ? rows : at::zeros({rows.size(0), 1}, rows.options());
    const auto [low, high] = at::aminmax(values.to(compute_dtype(rows.scalar_type())), 1);
    return qparams_of(low, high);
  }
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
    for (int64_t i = 0; i < candidates(grid); ++i) {
      const double factor = 1.0 - static_cast<double>(i) / 50;
      const auto [tried, zeros] = qparams_of(low * factor, high * factor);
      const auto rounded = fake_quantize_per_channel(near_one, tried * power, zeros, 0,
                                                     grid.quant_min, grid.quant_max);
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

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> search_scale(
    const at::Tensor& rows, int64_t quant_min, int64_t quant_max, bool symmetric,
    std::string_view scale_dtype, const std::optional<at::Tensor>& importance,
    std::string_view scale_rule) {
  const Grid grid{quant_min, quant_max, symmetric, scale_dtype};
  const auto found = find_lattice(rows, grid, /*every=*/scale_rule == "lattice");
  const auto count = rows.is_meta() ? 0 : found.is_exact.sum().item<int64_t>();
  const bool is_whole = quant_max - quant_min == 255;
  if (count == rows.size(0) || (is_whole && count == 0)) {
    return {found.scale, found.zero_point, found.is_exact};
  }
  const auto [scale, zero_point] = search_ranges(rows, grid, importance);
  return {at::where(found.is_exact, found.scale, scale),
          at::where(found.is_exact, found.zero_point, zero_point), found.is_exact};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> search_int4_factors(
    const at::Tensor& rows, int64_t group_size, bool symmetric,
    const std::optional<at::Tensor>& given, int64_t bits) {
  const int4::Width width{static_cast<int>(bits)};
  const auto step = std::max<int64_t>(1, chunk / std::max<int64_t>(1, rows.size(1)));
  std::array<std::vector<at::Tensor>, 3> found;
  for (int64_t start = 0; start == 0 || start < rows.size(0); start += step) {
    const auto part = rows.slice(0, start, start + step);
    auto [scale, factor, zero_point] = choose_int4_qparams(part, group_size, symmetric, bits);
    if (given) scale = given->slice(0, start, start + step);
    const auto values = part.to(scale.scalar_type()).unflatten(1, {-1, group_size});
    const auto [least, most] = at::aminmax(values, 2);
    const auto low = least.clamp_max(0), high = most.clamp_min(0);
    // Errors are compared where the scale is near 1: their squares neither overflow nor vanish.
    const auto power = power_to_one(scale).unsqueeze(1).unsqueeze(2);
    const auto near_one = values * power;
    const auto scale_near_one = scale.unsqueeze(1).unsqueeze(2) * power;
    auto best = at::full_like(low, std::numeric_limits<double>::infinity());
    factor = at::ones_like(factor);
    zero_point = at::full_like(zero_point, int4::kMiddle);
    for (int64_t number = 16; number > 0; --number) {
      const auto factors = at::full_like(factor, number);
      const auto grid = scale.unsqueeze(1) * number;
      const std::array positions = {(-low / grid).round() + width.least(),
                                    at::rsub((low + high) / (2 * grid), middle).round()};
      for (size_t i = 0; i < (symmetric ? 1 : positions.size()); ++i) {
        auto zeros = positions[i].nan_to_num(0.0);
        zeros = zeros.clamp(width.least(), width.most()).to(at::kByte);
        if (symmetric) zeros = at::full_like(zeros, int4::kMiddle);
        const auto packed = quantize_int4(part, scale, factors, group_size, zeros, bits);
        const auto rounded = expand_int4(packed, factors, group_size, part.size(1), zeros)
                                 .unflatten(1, {-1, group_size});
        const auto error = (rounded * scale_near_one - near_one).square_().sum(2);
        const auto is_better = error < best;
        best = at::where(is_better, error, best);
        factor = at::where(is_better, factors, factor);
        zero_point = at::where(is_better, zeros, zero_point);
      }
    }
    found[0].push_back(scale);
    found[1].push_back(factor);
    found[2].push_back(zero_point);
  }
  return {at::cat(found[0]), at::cat(found[1]), at::cat(found[2])};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fit_int4_factors(
    const at::Tensor& rows, int64_t group_size, bool symmetric, std::string_view scale_rule,
    int64_t bits) {
  const auto found = search_int4_factors(rows, group_size, symmetric, std::nullopt, bits);
  const auto lattice = find_lattice(rows, {-128, 127, /*symmetric=*/true, "float32"},
                                    /*every=*/scale_rule == "lattice");
  if (rows.is_meta()) return std::tuple_cat(found, std::tuple{lattice.is_exact});
  const auto place = lattice.is_exact.nonzero().squeeze(1);
  if (place.numel() > 0) {
    const auto own = rows.index_select(0, place);
    const auto in_scale =
        search_int4_factors(own, group_size, symmetric, lattice.scale.index_select(0, place), bits);
    const auto& [scale, factor, zero_point] = in_scale;
    const auto packed = quantize_int4(own, scale, factor, group_size, zero_point, bits);
    const auto integers = expand_int4(packed, factor, group_size, own.size(1), zero_point);
    const auto zeros = lattice.zero_point.index_select(0, place);
    const auto is_same = (integers == quantize_per_channel(own, scale, zeros, 0, -128, 127)).all(1);
    lattice.is_exact.index_copy_(0, place, is_same);
    const auto is_kept = is_same.nonzero().squeeze(1);
    const auto put = [&](const at::Tensor& all, const at::Tensor& part) {
      all.index_copy_(0, place.index_select(0, is_kept), part.index_select(0, is_kept));
    };
    put(std::get<0>(found), scale);
    put(std::get<1>(found), factor);
    put(std::get<2>(found), zero_point);
  }
  return std::tuple_cat(found, std::tuple{lattice.is_exact});
}

}  // namespace baraquant::search
