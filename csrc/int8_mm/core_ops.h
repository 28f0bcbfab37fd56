// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family that train, through the dispatcher. What each computes
// stands with its schema in schema.cpp.
#pragma once

#include <string_view>
#include <tuple>

#include "granularity/arguments.h"
#include "range/quantize_rows.h"

namespace baraquant::int8_mm {

using range::RowScheme;

// How input and weight become integers. The weight's scheme is symmetric.
struct Schemes {
  RowScheme input, weight;

  static constexpr const char* kSchema =
      "bool symmetric, int weight_quant_min, int weight_quant_max, int quant_min, int quant_max";
  using Flat = std::tuple<bool, int64_t, int64_t, int64_t, int64_t>;
  Flat flat() const {
    return {input.symmetric, weight.quant_min, weight.quant_max, input.quant_min, input.quant_max};
  }
  static Schemes from_flat(bool symmetric, int64_t weight_quant_min, int64_t weight_quant_max,
                           int64_t quant_min, int64_t quant_max) {
    return {.input = {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max},
            .weight = {
                .symmetric = true, .quant_min = weight_quant_min, .quant_max = weight_quant_max}};
  }
};

// A weight that is integers already, both or neither. The floating weight then takes the gradient,
// and is not read.
struct GivenWeight {
  const OptionalTensor &integers, &scale;

  static constexpr const char* kSchema = "Tensor? qweight=None, Tensor? weight_scale=None";
  using Flat = std::tuple<const OptionalTensor&, const OptionalTensor&>;
  Flat flat() const { return {integers, scale}; }
  static GivenWeight from_flat(const OptionalTensor& integers, const OptionalTensor& scale) {
    return {integers, scale};
  }
  static GivenWeight none() {
    static const OptionalTensor no_tensor;
    return {no_tensor, no_tensor};
  }
  explicit operator bool() const { return integers.has_value(); }
};

// How a backward pass computes gradients, by the names that a user gives.
struct BackwardArgs {
  std::string_view backward = "float", rounding = "nearest";

  static constexpr const char* kSchema = "str backward=\"float\", str rounding=\"nearest\"";
  using Flat = std::tuple<std::string_view, std::string_view>;
  Flat flat() const { return {backward, rounding}; }
  static BackwardArgs from_flat(std::string_view backward, std::string_view rounding) {
    return {backward, rounding};
  }
  bool is_float() const { return backward == "float"; }
  bool has_weight() const { return backward == "int8"; }
  bool is_stochastic() const { return rounding == "stochastic"; }
};

// The output, and a bit for each element of the input, row by row: whether it lay inside the range.
using MaskedProduct = std::tuple<at::Tensor, at::Tensor>;

// (output, input's integers, scales, zero points, mask; weight's integers, scales). What a
// scheme does not have is an empty tensor, and so are the weight's of a given weight.
using KeptByQatLinear =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                      const Schemes& schemes, const BackwardArgs& backward,
                      const GivenWeight& given);
KeptByQatLinear qat_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, const Schemes& schemes, bool with_mask,
                                const GivenWeight& given);
at::Tensor qat_grouped_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& offsets, const OptionalTensor& bias,
                              const Schemes& schemes, const BackwardArgs& backward);
KeptByQatLinear qat_grouped_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                        const at::Tensor& offsets, const OptionalTensor& bias,
                                        const Schemes& schemes, bool with_mask);

}  // namespace baraquant::int8_mm
