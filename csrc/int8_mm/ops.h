// SPDX-License-Identifier: BSD-3-Clause
// qat_linear through the dispatcher. What it computes stands with its schema in int8_mm.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace baraquant::int8_mm {

using OptionalTensor = std::optional<at::Tensor>;

// (output, input's integers, scales, zero points, mask; weight's integers, scales)
using KeptByQatLinear =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                      bool symmetric);
KeptByQatLinear qat_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, bool symmetric, bool with_mask);

}  // namespace baraquant::int8_mm
