// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the affine family, run before any kernel on every device and under
// tracing.
#pragma once

#include "affine/core_ops.h"

namespace baraquant::affine {

// Checks a zero point that is a number.
void check_zero_point_number(const OpName& op, int64_t zero_point, int64_t quant_min,
                             int64_t quant_max);
void check_quantize(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                    at::ScalarType dtype);
void check_fake_quantize(const OpName& op, const at::Tensor& input, const QuantArgs& q);
void check_dequantize(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                      at::ScalarType dtype, const char* input_name = "input");
void check_gradient(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                    const at::Tensor& grad, bool through_quantize);
void check_masked_gradient(const OpName& op, const at::Tensor& grad, const QuantArgs& q,
                           const at::Tensor& mask, at::ScalarType dtype, bool through_quantize);

}  // namespace baraquant::affine
