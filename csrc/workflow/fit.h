// SPDX-License-Identifier: BSD-3-Clause
// Fits the scales of weights of few bits: tries several, and takes the minimum squared error.
#pragma once

#include "api/nn/int4.h"
#include "api/nn/quantizers.h"

namespace baraquant::workflow {

// A fake quantizer with the scales that fit the values best.
//
// For each scale 26 ranges are tried: the full range of its values, and narrower ones down to half of
// it. The range with the minimum squared error is taken, and of two equal ones the wider.
//
// `rows` is the input of `quantizer`, whose first dimension counts rows; `quantizer` is dynamic.
std::shared_ptr<nn::FakeQuantizeImpl> fit_scale(const torch::Tensor& rows,
                                                const nn::FakeQuantizeImpl& quantizer);

// A fake quantizer with the factors that fit the values best.
//
// They are those of searched_factors. `rows` is the weight `[N, K]`.
std::shared_ptr<nn::FakeQuantizeInt4Impl> fit_factors(const torch::Tensor& rows,
                                                      const nn::FakeQuantizeInt4Impl& quantizer);

// One of these two.
std::shared_ptr<nn::Quantizer> fit(const torch::Tensor& rows, const nn::Quantizer& quantizer);

}  // namespace baraquant::workflow
