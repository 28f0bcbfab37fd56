// SPDX-License-Identifier: BSD-3-Clause
// The searches for scales and factors of weights of few bits: they try several, and take the least
// squared error.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace baraquant::search {

// The scale and the zero point of each row of a matrix `[rows, columns]` that fit it best, and whether
// they are exact.
//
// They are those of find_lattice where it finds exact ones; the rule "lattice" tries every row.
//
// Otherwise 26 ranges are tried: the full range of its values, and narrower ones down to half of it:
// both ends are multiplied by 1 - i / 50, i from 0 to 25, and the scale is that of
// qparams_of_range for the two ends. With at most three bits they are 41, as i goes to 40: down to a
// fifth. The range with the minimum squared error is taken, and of two equal ones the wider. Errors
// are summed for the values times the power of two that takes the largest magnitude into [1, 2), in
// the dtype of the scale. Eight bits take the full range; if no row is exact, nothing is computed for
// them, and the scales are 1.
//
// `importance` is what the squared errors are multiplied by: `[rows, columns]`, or of fewer rows,
// which then repeat.
std::tuple<at::Tensor, at::Tensor, at::Tensor> search_scale(
    const at::Tensor& rows, int64_t quant_min, int64_t quant_max, bool symmetric,
    std::string_view scale_dtype, const std::optional<at::Tensor>& importance = std::nullopt,
    std::string_view scale_rule = "search");

// The scale `[N]`, and the factors and zero points `[N, groups]`, that fit the rows `[N, K]` best.
//
// The scale of a row is that of choose_int4_qparams, unless it is given. For each group all factors
// are tried, from 16 down to 1, and the one with the minimum squared error is taken, of two equal
// ones the larger. A group with a zero point tries, for each factor f, two: with step = scale * f and
// the least value low = min(0, min w) and the largest high = max(0, max w) of the group,
// rint(-low / step) and then rint(7.5 - (low + high) / (2 * step)), both clamped to [0, 15]. Of 2 or
// 3 `bits` the numbers u and z are in [8 - 2^(bits - 1), 7 + 2^(bits - 1)], and the first is larger by
// the least of them. The numbers are those of quantize_int4, and the errors are
// sum((w8 * (scale * p) - w * p)^2), where the power of two p takes the scale of the row into [1, 2).
// All is computed in the dtype of the scale.
std::tuple<at::Tensor, at::Tensor, at::Tensor> search_int4_factors(
    const at::Tensor& rows, int64_t group_size, bool symmetric,
    const std::optional<at::Tensor>& scale = std::nullopt, int64_t bits = 4);

// The same, and whether a row keeps its own bits, `[N]`. A row that is integers of eight bits times a
// scale (lattice.h) gets that scale and the factors for it, if they give its very integers.
// `scale_rule`: "lattice" looks at every row for that, "search" at some first.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fit_int4_factors(
    const at::Tensor& rows, int64_t group_size, bool symmetric, std::string_view scale_rule,
    int64_t bits = 4);

}  // namespace baraquant::search
