// SPDX-License-Identifier: BSD-3-Clause
// Fits the scales of weights of few bits: tries several, and takes the minimum squared error.
#pragma once

#include "api/nn/quantizers.h"

namespace baraquant::workflow {

// A fake quantizer with the scales, or the factors, that fit the values best: those of search_scale,
// or of search_int4_factors. `rows` is the input of `quantizer`, which is dynamic; its first dimension
// counts rows.
std::shared_ptr<nn::Quantizer> fit(const torch::Tensor& rows, const nn::Quantizer& quantizer);

}  // namespace baraquant::workflow
