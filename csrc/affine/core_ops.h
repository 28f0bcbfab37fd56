// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the affine family, one for each verb and each gradient, through the dispatcher.
// What each computes stands with its schema in schema.cpp.
#pragma once

#include <tuple>

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

  static std::string schema() {
    return std::string(
               "Tensor? scale, Tensor? zero_point, float scale_number, int zero_point_number, ") +
           Scope::kSchema + ", int quant_min, int quant_max";
  }
  using Flat = std::tuple<const OptionalTensor&, const OptionalTensor&, double, int64_t, int64_t,
                          int64_t, c10::SymInt, int64_t, int64_t>;
  Flat flat() const {
    return std::tuple_cat(std::tie(scale, zero_point),
                          std::make_tuple(scale_number, zero_point_number), scope.flat(),
                          std::make_tuple(quant_min, quant_max));
  }
  static QuantArgs from_flat(const OptionalTensor& scale, const OptionalTensor& zero_point,
                             double scale_number, int64_t zero_point_number, int64_t granularity,
                             int64_t axis, c10::SymInt group_size, int64_t quant_min,
                             int64_t quant_max) {
    return {.scale = scale,
            .zero_point = zero_point,
            .scale_number = scale_number,
            .zero_point_number = zero_point_number,
            .scope = Scope::from_flat(granularity, axis, std::move(group_size)),
            .quant_min = quant_min,
            .quant_max = quant_max};
  }
};

using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor quantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                    std::optional<bool> save_mask);
at::Tensor fake_quantize(const at::Tensor& input, const QuantArgs& q, std::optional<bool> save_mask,
                         const OptionalTensor& enabled);
at::Tensor dequantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype);
TensorPair quantize_with_mask(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                              at::IntArrayRef order);
TensorPair fake_quantize_with_mask(const at::Tensor& input, const QuantArgs& q,
                                   at::IntArrayRef order, const OptionalTensor& enabled);
at::Tensor input_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                          bool through_quantize);
at::Tensor masked_gradient(const at::Tensor& grad, const QuantArgs& q, const at::Tensor& mask,
                           at::IntArrayRef order, at::ScalarType dtype, bool through_quantize);
TensorTriple qparams_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                              bool zero_point_gradient);

}  // namespace baraquant::affine
