// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::int8_mm {

at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                      const Schemes& schemes, const BackwardArgs& backward,
                      const GivenWeight& given) {
  static const CoreOp<decltype(qat_linear)> op("baraquant::qat_linear");
  return op(input, weight, bias, schemes, backward, given);
}

KeptByQatLinear qat_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, const Schemes& schemes, bool with_mask,
                                const GivenWeight& given) {
  static const CoreOp<decltype(qat_linear_kept)> op("baraquant::_qat_linear_kept");
  return op(input, weight, bias, schemes, with_mask, given);
}

at::Tensor qat_grouped_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& offsets, const OptionalTensor& bias,
                              const Schemes& schemes, const BackwardArgs& backward) {
  static const CoreOp<decltype(qat_grouped_linear)> op("baraquant::qat_grouped_linear");
  return op(input, weight, offsets, bias, schemes, backward);
}

KeptByQatLinear qat_grouped_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                        const at::Tensor& offsets, const OptionalTensor& bias,
                                        const Schemes& schemes, bool with_mask) {
  static const CoreOp<decltype(qat_grouped_linear_kept)> op("baraquant::_qat_grouped_linear_kept");
  return op(input, weight, offsets, bias, schemes, with_mask);
}

}  // namespace baraquant::int8_mm
