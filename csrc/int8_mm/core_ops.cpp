// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/core_ops.h"

#include "frame/core_op.h"
#include "int8_mm/grouped_products.h"
#include "int8_mm/integer_backward.h"

namespace baraquant::int8_mm {

at::Tensor qat_linear(const QatLinear& call, const BackwardArgs& backward,
                      const GivenWeight& given) {
  static const CoreOp<decltype(qat_linear)> op("baraquant::qat_linear");
  return op(call, backward, given);
}

KeptByQatLinear qat_linear_kept(const QatLinear& call, bool with_mask, const GivenWeight& given) {
  static const CoreOp<decltype(qat_linear_kept)> op("baraquant::_qat_linear_kept");
  return op(call, with_mask, given);
}

at::Tensor qat_grouped_linear(const QatGroupedLinear& call, const BackwardArgs& backward) {
  static const CoreOp<decltype(qat_grouped_linear)> op("baraquant::qat_grouped_linear");
  return op(call, backward);
}

KeptByQatLinear qat_grouped_linear_kept(const QatGroupedLinear& call, bool with_mask) {
  static const CoreOp<decltype(qat_grouped_linear_kept)> op("baraquant::_qat_grouped_linear_kept");
  return op(call, with_mask);
}

Gradients integer_backward(const at::Tensor& grad, const IntegerBackwardArgs& args) {
  static const CoreOp<decltype(integer_backward)> op("baraquant::_integer_backward");
  return op(grad, args);
}

at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& offsets) {
  static const CoreOp<decltype(grouped_matmul)> op("baraquant::_grouped_matmul");
  return op(rows, matrices, offsets);
}

at::Tensor grouped_outer(const at::Tensor& left, const at::Tensor& right,
                         const at::Tensor& offsets) {
  static const CoreOp<decltype(grouped_outer)> op("baraquant::_grouped_outer");
  return op(left, right, offsets);
}

at::Tensor grouped_sum(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype) {
  static const CoreOp<decltype(grouped_sum)> op("baraquant::_grouped_sum");
  return op(rows, offsets, dtype);
}

}  // namespace baraquant::int8_mm
