// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scaled family. What each computes stands in ops.txt.
#pragma once

#include "frame/named_op.h"
#include "granularity/arguments.h"

namespace baraquant::scaled {

// What the two quantizing ops take.
struct ScaledArgs {
  const at::Tensor& input;
  const at::Tensor& factor;
  const OptionalTensor& random;

  static constexpr int kFields = 3;
  static constexpr const char* kSchema = "Tensor input, Tensor factor, *, Tensor? random=None";
};

inline constexpr NamedOp<"baraquant::scaled_quantize_per_token", TensorPair(const ScaledArgs& args)>
    scaled_quantize_per_token;
inline constexpr NamedOp<"baraquant::scaled_quantize_transposed",
                         TensorPair(const ScaledArgs& args)>
    scaled_quantize_transposed;
inline constexpr NamedOp<"baraquant::transpose_int8", at::Tensor(const at::Tensor& input)>
    transpose_int8;
inline constexpr NamedOp<"baraquant::draw_random",
                         at::Tensor(const at::Tensor& like, int64_t count)>
    draw_random;

}  // namespace baraquant::scaled
