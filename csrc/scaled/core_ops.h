// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scaled family, through the dispatcher. What each computes stands with its schema
// in schema.cpp.
#pragma once

#include <tuple>

#include "granularity/arguments.h"

namespace baraquant::scaled {

using TensorPair = std::tuple<at::Tensor, at::Tensor>;

TensorPair scaled_quantize_per_token(const at::Tensor& input, const at::Tensor& factor,
                                     const OptionalTensor& random);
TensorPair scaled_quantize_transposed(const at::Tensor& input, const at::Tensor& factor,
                                      const OptionalTensor& random);
at::Tensor transpose_int8(const at::Tensor& input);
at::Tensor draw_random(const at::Tensor& like, int64_t count);

}  // namespace baraquant::scaled
