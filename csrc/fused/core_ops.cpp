// SPDX-License-Identifier: BSD-3-Clause
#include "fused/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::fused {

at::Tensor norm(const at::Tensor& input, const NormArgs& args) {
  static const CoreOp<decltype(norm)> op("baraquant::_norm");
  return op(input, args);
}

TensorPair norm_residual(const at::Tensor& input, const at::Tensor& residual,
                         const NormArgs& args) {
  static const CoreOp<decltype(norm_residual)> op("baraquant::_norm_residual");
  return op(input, residual, args);
}

TensorTriple norm_quantize(const at::Tensor& input, const NormArgs& args, const QuantizeArgs& q) {
  static const CoreOp<decltype(norm_quantize)> op("baraquant::_norm_quantize");
  return op(input, args, q);
}

TensorQuadruple norm_residual_quantize(const at::Tensor& input, const at::Tensor& residual,
                                       const NormArgs& args, const QuantizeArgs& q) {
  static const CoreOp<decltype(norm_residual_quantize)> op("baraquant::_norm_residual_quantize");
  return op(input, residual, args, q);
}

at::Tensor activation(const at::Tensor& input, const OptionalTensor& up, int64_t activation) {
  static const CoreOp<decltype(fused::activation)> op("baraquant::_activation");
  return op(input, up, activation);
}

TensorTriple activation_quantize(const at::Tensor& input, const OptionalTensor& up,
                                 int64_t activation, const QuantizeArgs& q) {
  static const CoreOp<decltype(activation_quantize)> op("baraquant::_activation_quantize");
  return op(input, up, activation, q);
}

at::Tensor hadamard(const at::Tensor& input, int64_t block) {
  static const CoreOp<decltype(hadamard)> op("baraquant::_hadamard");
  return op(input, block);
}

TensorTriple hadamard_quantize(const at::Tensor& input, int64_t block, const QuantizeArgs& q) {
  static const CoreOp<decltype(hadamard_quantize)> op("baraquant::_hadamard_quantize");
  return op(input, block, q);
}

}  // namespace baraquant::fused
