// SPDX-License-Identifier: BSD-3-Clause
#include "affine/core_ops.h"

namespace baraquant::affine {

at::Tensor quantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                    std::optional<bool> save_mask) {
  static const CoreOp<at::Tensor, at::ScalarType, std::optional<bool>> op("baraquant::_quantize");
  return op(input, q, dtype, save_mask);
}

at::Tensor fake_quantize(const at::Tensor& input, const QuantArgs& q, std::optional<bool> save_mask,
                         const OptionalTensor& enabled) {
  static const CoreOp<at::Tensor, std::optional<bool>, const OptionalTensor&> op(
      "baraquant::_fake_quantize");
  return op(input, q, save_mask, enabled);
}

at::Tensor dequantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype) {
  static const CoreOp<at::Tensor, at::ScalarType> op("baraquant::_dequantize");
  return op(input, q, dtype);
}

TensorPair quantize_with_mask(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                              at::IntArrayRef order) {
  static const CoreOp<TensorPair, at::ScalarType, at::IntArrayRef> op(
      "baraquant::_quantize_with_mask");
  return op(input, q, dtype, order);
}

TensorPair fake_quantize_with_mask(const at::Tensor& input, const QuantArgs& q,
                                   at::IntArrayRef order, const OptionalTensor& enabled) {
  static const CoreOp<TensorPair, at::IntArrayRef, const OptionalTensor&> op(
      "baraquant::_fake_quantize_with_mask");
  return op(input, q, order, enabled);
}

at::Tensor input_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                          bool through_quantize) {
  static const CoreOp<at::Tensor, const at::Tensor&, bool> op("baraquant::_input_gradient");
  return op(input, q, grad, through_quantize);
}

at::Tensor masked_gradient(const at::Tensor& grad, const QuantArgs& q, const at::Tensor& mask,
                           at::IntArrayRef order, at::ScalarType dtype, bool through_quantize) {
  static const CoreOp<at::Tensor, const at::Tensor&, at::IntArrayRef, at::ScalarType, bool> op(
      "baraquant::_masked_gradient");
  return op(grad, q, mask, order, dtype, through_quantize);
}

TensorTriple qparams_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                              bool zero_point_gradient) {
  static const CoreOp<TensorTriple, const at::Tensor&, bool> op("baraquant::_qparams_gradient");
  return op(input, q, grad, zero_point_gradient);
}

}  // namespace baraquant::affine
