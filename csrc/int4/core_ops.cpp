// SPDX-License-Identifier: BSD-3-Clause
#include "int4/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::int4 {

Qparams choose_int4_qparams(const at::Tensor& weight, int64_t group_size, bool symmetric) {
  static const CoreOp<decltype(choose_int4_qparams)> op("baraquant::choose_int4_qparams");
  return op(weight, group_size, symmetric);
}

at::Tensor quantize_int4(const at::Tensor& weight, const at::Tensor& scale,
                         const at::Tensor& group_factor, int64_t group_size,
                         const OptionalTensor& group_zero_point) {
  static const CoreOp<decltype(quantize_int4)> op("baraquant::quantize_int4");
  return op(weight, scale, group_factor, group_size, group_zero_point);
}

at::Tensor expand_int4(const at::Tensor& packed, const at::Tensor& group_factor, int64_t group_size,
                       c10::SymInt in_features, const OptionalTensor& group_zero_point) {
  static const CoreOp<decltype(expand_int4)> op("baraquant::expand_int4");
  return op(packed, group_factor, group_size, std::move(in_features), group_zero_point);
}

at::Tensor pack_int4(const at::Tensor& integers) {
  static const CoreOp<decltype(pack_int4)> op("baraquant::pack_int4");
  return op(integers);
}

}  // namespace baraquant::int4
