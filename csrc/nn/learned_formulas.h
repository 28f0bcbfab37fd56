// SPDX-License-Identifier: BSD-3-Clause
// Formulas of learned grids, which the modules of both languages call.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace baraquant::nn {

// The value with its gradient multiplied by a factor; the added 0 changes no bit.
at::Tensor with_gradient_factor(const at::Tensor& value, double factor);

// The step and the zero point with which a learned grid starts, for each row of a matrix: that of LSQ,
// 2 mean |x| / sqrt(quant_max), but at most max |x| / quant_max, which clips nothing, and 1 for zeros;
// asymmetric: those of the range. A row with a NaN or an infinity has no finite step.
std::tuple<at::Tensor, at::Tensor> first_learned_qparams(const at::Tensor& rows, int64_t quant_min,
                                                         int64_t quant_max, bool symmetric,
                                                         std::string_view scale_dtype);

// The same by a rule for weights, "search", "lattice" or "max": those that quantize_ finds.
std::tuple<at::Tensor, at::Tensor> fitted_qparams(const at::Tensor& rows, int64_t quant_min,
                                                  int64_t quant_max, bool symmetric,
                                                  std::string_view scale_dtype,
                                                  std::string_view scale_rule);

// The scale `[rows]`, and the factors and zero points `[rows, groups]`, uint8, that the steps and the
// zero points of groups round to, for the positive scale of each row. A row with a step or a zero
// point that is not finite has the scale NaN. `zero_point` is for the signed integers of the `bits`,
// 2 to 4; none: all 0.
std::tuple<at::Tensor, at::Tensor, at::Tensor> learned_int4_qparams(
    const at::Tensor& steps, const at::Tensor& scale, const std::optional<at::Tensor>& zero_point,
    int64_t bits);

// A weight `[rows, columns]` rounded by floating formulas, which have the gradients of
// LearnedFakeQuantizeInt4. The other arguments are those of learned_int4_qparams.
at::Tensor smooth_int4(const at::Tensor& input, const at::Tensor& steps, const at::Tensor& scale,
                       const std::optional<at::Tensor>& zero_point, int64_t group_size,
                       int64_t bits);

}  // namespace baraquant::nn
