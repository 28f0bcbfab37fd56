// SPDX-License-Identifier: BSD-3-Clause
// The op of the convolutions of integers. What it computes stands with its schema in schema.cpp.
#pragma once

#include <optional>

#include "frame/named_op.h"
#include "granularity/arguments.h"

namespace baraquant::int8_conv {

struct ConvArgs {
  const at::Tensor &input, &weight, &input_scale, &weight_scale;
  const OptionalTensor &bias, &input_zero_point, &weight_sum;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;
  std::optional<at::ScalarType> dtype;

  static constexpr int kFields = 12;
  int64_t space() const { return weight.dim() - 2; }  // dimensions of space
  bool is_batched() const { return input.dim() == weight.dim(); }
  // The dtype of the output: the given one, or that of the scales.
  at::ScalarType output_dtype() const {
    return dtype.value_or(weight_scale.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
};

inline constexpr const char* kOp = "baraquant::int8_conv";
inline constexpr NamedOp<"baraquant::int8_conv", at::Tensor(const ConvArgs& args)> int8_conv;

// With which tests try on the CPU what CUDA does.
void force_patches(bool forced);

}  // namespace baraquant::int8_conv
