// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::scaled {

TensorPair scaled_quantize_per_token(const at::Tensor& input, const at::Tensor& factor,
                                     const OptionalTensor& random) {
  static const CoreOp<decltype(scaled_quantize_per_token)> op(
      "baraquant::scaled_quantize_per_token");
  return op(input, factor, random);
}

TensorPair scaled_quantize_transposed(const at::Tensor& input, const at::Tensor& factor,
                                      const OptionalTensor& random) {
  static const CoreOp<decltype(scaled_quantize_transposed)> op(
      "baraquant::scaled_quantize_transposed");
  return op(input, factor, random);
}

at::Tensor transpose_int8(const at::Tensor& input) {
  static const CoreOp<decltype(transpose_int8)> op("baraquant::transpose_int8");
  return op(input);
}

at::Tensor draw_random(const at::Tensor& like, int64_t count) {
  static const CoreOp<decltype(draw_random)> op("baraquant::draw_random");
  return op(like, count);
}

}  // namespace baraquant::scaled
