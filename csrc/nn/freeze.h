// SPDX-License-Identifier: BSD-3-Clause
// Checks of the scales that training has found.
#pragma once

#include "api/nn/training.h"

namespace baraquant::nn {

inline constexpr const char* kUnseen =
    "expected the range of its input to be known, but it has seen no data: run batches in training "
    "mode first";

// A note of how many batches the range of an input ignored; empty if none.
std::string skipped(const Quantizer* quantizer);
// Check that a scale is finite; `scale_dtype` is what it was rounded to.
void check_finite(const char* what, const torch::Tensor& scale,
                  const std::string& scale_dtype = "float32");

}  // namespace baraquant::nn
