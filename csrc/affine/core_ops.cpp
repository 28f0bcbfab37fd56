// SPDX-License-Identifier: BSD-3-Clause
#include "affine/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::affine {

at::Tensor quantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                    std::optional<bool> save_mask) {
  static const CoreOp<decltype(quantize)> op("baraquant::_quantize");
  return op(input, q, dtype, save_mask);
}

at::Tensor fake_quantize(const at::Tensor& input, const QuantArgs& q, std::optional<bool> save_mask,
                         const OptionalTensor& enabled) {
  static const CoreOp<decltype(fake_quantize)> op("baraquant::_fake_quantize");
  return op(input, q, save_mask, enabled);
}

at::Tensor dequantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype) {
  static const CoreOp<decltype(dequantize)> op("baraquant::_dequantize");
  return op(input, q, dtype);
}

TensorPair quantize_with_mask(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                              at::IntArrayRef order) {
  static const CoreOp<decltype(quantize_with_mask)> op("baraquant::_quantize_with_mask");
  return op(input, q, dtype, order);
}

TensorPair fake_quantize_with_mask(const at::Tensor& input, const QuantArgs& q,
                                   at::IntArrayRef order, const OptionalTensor& enabled) {
  static const CoreOp<decltype(fake_quantize_with_mask)> op("baraquant::_fake_quantize_with_mask");
  return op(input, q, order, enabled);
}

at::Tensor input_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                          bool through_quantize) {
  static const CoreOp<decltype(input_gradient)> op("baraquant::_input_gradient");
  return op(input, q, grad, through_quantize);
}

at::Tensor masked_gradient(const at::Tensor& grad, const QuantArgs& q, const at::Tensor& mask,
                           at::IntArrayRef order, at::ScalarType dtype, bool through_quantize) {
  static const CoreOp<decltype(masked_gradient)> op("baraquant::_masked_gradient");
  return op(grad, q, mask, order, dtype, through_quantize);
}

TensorTriple qparams_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                              bool zero_point_gradient) {
  static const CoreOp<decltype(qparams_gradient)> op("baraquant::_qparams_gradient");
  return op(input, q, grad, zero_point_gradient);
}

}  // namespace baraquant::affine
