// SPDX-License-Identifier: BSD-3-Clause
// From the checked arguments of an op to a launch of the product.
#pragma once

#include "int8_mm/checks.h"
#include "int8_mm/launch.h"
#include "range/quantize_rows.h"

namespace baraquant::int8_mm {

// The output [..., N]; zeros if there is nothing to multiply.
at::Tensor empty_output(const LinearArgs& args, at::ScalarType dtype);

// Whether anything is left to multiply into an output of empty_output().
bool is_left_to_do(const LinearArgs& args, const at::Tensor& output);

// An input [..., K] as a contiguous [tokens, K], also if K is 0.
at::Tensor contiguous_rows(const at::Tensor& input);

// A scale or zero point in any allowed shape as one dimension: one for all, or one for each token.
at::Tensor of_rows(const at::Tensor& tensor);

// The weight as the kernels multiply it.
struct IntegerWeight {
  const at::Tensor& values;
  const at::Tensor& scale;  // undefined if the sums are wanted
};

// Everything in a call but the scales and zero points of the input.
ProductCall prepare(const LinearArgs& args, const at::Tensor& rows, const IntegerWeight& weight,
                    const at::Tensor& output);

// Launches the product. A zero point needs the sums of the weight: they are computed if absent.
void launch(ProductCall& call, const OptionalTensor& weight_sum);

void multiply_quantized(const LinearArgs& args, const range::QuantizedRows& rows,
                        const IntegerWeight& weight, const at::Tensor& output);

}  // namespace baraquant::int8_mm
