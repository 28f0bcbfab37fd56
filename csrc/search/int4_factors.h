// SPDX-License-Identifier: BSD-3-Clause
// The search for the factors of four-bit weights: tries all, and takes the least squared error.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace baraquant::search {

// The scale `[N]`, and the factors and zero points `[N, groups]`, that fit the rows `[N, K]` best.
//
// The scale of a row is that of choose_int4_qparams, unless it is given. For each group all factors
// are tried, from 16 down to 1, and the one with the minimum squared error is taken, of two equal
// ones the larger. A group with a zero point tries, for each factor f, two: with step = scale * f and
// the least value low = min(0, min w) and the largest high = max(0, max w) of the group,
// rint(-low / step) and then rint(7.5 - (low + high) / (2 * step)), both clamped to [0, 15]. The
// numbers are those of quantize_int4, and the errors are sum((w8 * (scale * p) - w * p)^2), where the
// power of two p takes the scale of the row into [1, 2). All is computed in the dtype of the scale.
std::tuple<at::Tensor, at::Tensor, at::Tensor> search_int4_factors(
    const at::Tensor& rows, int64_t group_size, bool symmetric,
    const std::optional<at::Tensor>& scale = std::nullopt);

}  // namespace baraquant::search
