// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the affine family, one for each verb and each gradient. What each computes stands
// with its schema in schema.cpp.
#pragma once

#include <string>

#include "frame/named_op.h"
#include "granularity/arguments.h"

namespace baraquant::affine {

// What every core op takes after its first tensor: the scale and the zero point (numbers where the
// tensors are absent), the granularity and the range of the integers.
struct QuantArgs {
  const OptionalTensor& scale;
  const OptionalTensor& zero_point;
  double scale_number = 1;
  int64_t zero_point_number = 0;
  Scope scope = {};
  int64_t quant_min = -128, quant_max = 127;

  static constexpr int kFields = 7;
  static std::string schema() {
    return std::string(
               "Tensor? scale, Tensor? zero_point, float scale_number, int zero_point_number, ") +
           Scope::kSchema + ", int quant_min, int quant_max";
  }
};

inline constexpr NamedOp<"baraquant::_quantize",
                         at::Tensor(const at::Tensor& input, const QuantArgs& q,
                                    at::ScalarType dtype, std::optional<bool> save_mask)>
    quantize;
inline constexpr NamedOp<"baraquant::_fake_quantize",
                         at::Tensor(const at::Tensor& input, const QuantArgs& q,
                                    std::optional<bool> save_mask, const OptionalTensor& enabled)>
    fake_quantize;
inline constexpr NamedOp<"baraquant::_dequantize",
                         at::Tensor(const at::Tensor& input, const QuantArgs& q,
                                    at::ScalarType dtype)>
    dequantize;
inline constexpr NamedOp<"baraquant::_quantize_with_mask",
                         TensorPair(const at::Tensor& input, const QuantArgs& q,
                                    at::ScalarType dtype, at::IntArrayRef order)>
    quantize_with_mask;
inline constexpr NamedOp<"baraquant::_fake_quantize_with_mask",
                         TensorPair(const at::Tensor& input, const QuantArgs& q,
                                    at::IntArrayRef order, const OptionalTensor& enabled)>
    fake_quantize_with_mask;
inline constexpr NamedOp<"baraquant::_input_gradient",
                         at::Tensor(const at::Tensor& input, const QuantArgs& q,
                                    const at::Tensor& grad, bool through_quantize)>
    input_gradient;
inline constexpr NamedOp<"baraquant::_masked_gradient",
                         at::Tensor(const at::Tensor& grad, const QuantArgs& q,
                                    const at::Tensor& mask, at::IntArrayRef order,
                                    at::ScalarType dtype, bool through_quantize)>
    masked_gradient;
inline constexpr NamedOp<"baraquant::_qparams_gradient",
                         TensorTriple(const at::Tensor& input, const QuantArgs& q,
                                      const at::Tensor& grad, bool zero_point_gradient)>
    qparams_gradient;
inline constexpr NamedOp<"baraquant::_round_master",
                         at::Tensor(const at::Tensor& input, bool to_bfloat16)>
    round_master;

}  // namespace baraquant::affine
