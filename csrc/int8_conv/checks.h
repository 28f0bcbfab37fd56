// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of a convolution of integers, run before any kernel on every device and under
// tracing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "granularity/arguments.h"
#include "int8_conv/shape.h"

namespace baraquant::int8_conv {

inline constexpr const char* kOp = "baraquant::int8_conv";

struct ConvArgs {
  const at::Tensor& input;
  const at::Tensor& weight;
  const at::Tensor& input_scale;
  const at::Tensor& weight_scale;
  const OptionalTensor& bias;
  const OptionalTensor& input_zero_point;
  const OptionalTensor& weight_sum;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups = 1;
  at::ScalarType dtype = at::kFloat;  // of the output

  int64_t space() const { return weight.dim() - 2; }  // dimensions of space
  bool is_batched() const { return input.dim() == weight.dim(); }
};

// The dtype of the output: the given one, or that of the scales.
inline at::ScalarType output_dtype(std::optional<at::ScalarType> dtype, const at::Tensor& scale) {
  return dtype.value_or(scale.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// NB: autograd calls it too, as in int8_mm/checks.h.
void check_dispatchable_args(const ConvArgs& args);

// Checks all arguments and returns the sizes of the output.
std::vector<c10::SymInt> check_conv(const ConvArgs& args);

// Of checked arguments whose sizes are numbers.
Shape shape_of(const ConvArgs& args);

}  // namespace baraquant::int8_conv
