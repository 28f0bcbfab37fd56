// SPDX-License-Identifier: BSD-3-Clause
// The search for scales of few bits: tries several, and takes the least squared error.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace baraquant::search {

// The scale and the zero point of each row of a matrix `[rows, columns]` that fit it best.
//
// For each row 26 ranges are tried: the full range of its values, and narrower ones down to half of
// it: both ends are multiplied by 1 - i / 50, i from 0 to 25, and the scale is that of
// qparams_of_range for the two ends. The range with the minimum squared error is taken, and of two
// equal ones the wider. Errors are summed for the values times the power of two that takes the
// largest magnitude into [1, 2), in the dtype of the scale.
//
// `importance` is what the squared errors are multiplied by: `[rows, columns]`, or of fewer rows,
// which then repeat.
std::tuple<at::Tensor, at::Tensor> search_scale(
    const at::Tensor& rows, int64_t quant_min, int64_t quant_max, bool symmetric,
    std::string_view scale_dtype, const std::optional<at::Tensor>& importance = std::nullopt);

}  // namespace baraquant::search
