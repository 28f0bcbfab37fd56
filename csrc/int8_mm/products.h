// SPDX-License-Identifier: BSD-3-Clause
// The products of an input and a weight of integers, for the ops of int8 and of four bits: below
// autograd, for CPU, CUDA and Meta.
#pragma once

#include <optional>

#include "int8_mm/checks.h"

namespace baraquant::int8_mm {

// Checks values where that makes no device wait. A planned call has no values.
void check_values(const LinearArgs& args);

// Of an input that is integers.
at::Tensor product(const LinearArgs& args, const InputQparams& q, at::ScalarType dtype);

// Its two halves: the sums as int32, and what turns them into numbers.
at::Tensor integer_product(const LinearArgs& args, const InputQparams& q);
at::Tensor rescaled(const LinearArgs& args, const InputQparams& q, at::ScalarType dtype);

// Of a floating input, quantized with a scale for each row, or with one given scale.
MaskedProduct quantized_product(bool with_mask, const LinearArgs& args, const RowScheme& scheme,
                                std::optional<at::ScalarType> dtype);
MaskedProduct static_product(bool with_mask, const LinearArgs& args, const at::Tensor& act_scale,
                             const OptionalTensor& act_zero_point,
                             const OptionalTensor& smooth_scale, int64_t quant_min,
                             int64_t quant_max, std::optional<at::ScalarType> dtype);

}  // namespace baraquant::int8_mm
