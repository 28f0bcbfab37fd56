// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the integer matrix family, run before any kernel on every device and under
// tracing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "int4/core_ops.h"
#include "int8_mm/core_ops.h"

namespace baraquant::int8_mm {

// The arguments that the ops of the family share. An op without weight_scale, weight_sum or offsets
// leaves the pointer null. rescale_product has no weight: there it is the input, whose last dimension
// are the outputs.
struct LinearArgs {
  const char* op;
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor* weight_scale = nullptr;
  const OptionalTensor& bias;
  const OptionalTensor* weight_sum = nullptr;
  const at::Tensor* offsets = nullptr;  // of a grouped op, whose weight has three dimensions
  const int4::Groups* int4 = nullptr;   // of an op whose weight is packed numbers of four bits
  bool has_weight = true;

  const char* weight_name() const { return int4 ? "packed" : "weight"; }
  // The inputs of a dot product. An int4 op needs an input with a dimension.
  c10::SymInt depth() const { return int4 ? input.sym_size(-1) : weight.sym_size(-1); }
  bool is_grouped() const { return offsets != nullptr; }
};

// The given scale and zero point of an input: tensors, or numbers.
struct InputQparams {
  const char* scale_name;
  const char* zero_point_name;
  bool scale_per_token;               // whether there may be one for each token
  const at::Tensor* scale = nullptr;  // null: scale_number
  const OptionalTensor* zero_point = nullptr;
  double scale_number = 1;
  std::optional<int64_t> zero_point_number = std::nullopt;
  bool zero_point_per_token = true;

  bool has_zero_point() const {
    return zero_point ? zero_point->has_value() : zero_point_number.has_value();
  }
};

// Those of the ops whose input is integers, with one scale for all or one for each token.
inline InputQparams token_qparams(const at::Tensor& input_scale,
                                  const OptionalTensor& input_zero_point) {
  return {.scale_name = "input_scale",
          .zero_point_name = "input_zero_point",
          .scale_per_token = true,
          .scale = &input_scale,
          .zero_point = &input_zero_point};
}

// Those of int8_product, which has no scale.
inline InputQparams token_zero_points(const OptionalTensor& input_zero_point) {
  return {.scale_name = "",
          .zero_point_name = "input_zero_point",
          .scale_per_token = true,
          .zero_point = &input_zero_point};
}

// Those of the ops with one static scale.
inline InputQparams static_qparams(const at::Tensor& act_scale,
                                   const OptionalTensor& act_zero_point) {
  return {.scale_name = "act_scale",
          .zero_point_name = "act_zero_point",
          .scale_per_token = false,
          .scale = &act_scale,
          .zero_point = &act_zero_point,
          .zero_point_per_token = false};
}

// Checks all tensors in args. NB: autograd calls it too. Otherwise Python would refuse a nested
// tensor of jagged layout under the name of the op that comes next.
void check_all_dispatchable(const LinearArgs& args);
void check_product(const LinearArgs& args, const InputQparams& qparams, at::ScalarType dtype);
void check_integer_product(const LinearArgs& args, const InputQparams& qparams);
void check_rescale(const LinearArgs& args, const InputQparams& qparams, at::ScalarType dtype);
// dtype: of the output.
void check_quantized_linear(const LinearArgs& args, const RowScheme& scheme, at::ScalarType dtype);
void check_static_quantized_linear(const LinearArgs& args, const InputQparams& qparams,
                                   const OptionalTensor& smooth_scale, int64_t quant_min,
                                   int64_t quant_max, at::ScalarType dtype);
void check_qat_linear(const LinearArgs& args, const Schemes& schemes,
                      const GivenWeight& given = GivenWeight::none());
void check_backward(const LinearArgs& args, const BackwardArgs& backward);
// Checks the values of a grouped op's offsets if they are on the CPU.
void check_offset_values(const LinearArgs& args);

}  // namespace baraquant::int8_mm
