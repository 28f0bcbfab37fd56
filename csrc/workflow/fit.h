// SPDX-License-Identifier: BSD-3-Clause
// Fits the scales of weights of few bits: tries several, and takes the minimum squared error.
#pragma once

#include "api/nn/int4.h"
#include "api/nn/quantizers.h"

namespace baraquant::workflow {

// A fake quantizer with the scales that fit the values best.
//
// They are those of search_scale. `rows` is the input of `quantizer`, which is dynamic; its first
// dimension counts rows.
std::shared_ptr<nn::FakeQuantizeImpl> fit_scale(const torch::Tensor& rows,
                                                const nn::FakeQuantizeImpl& quantizer);

// A fake quantizer with the factors that fit the values best.
//
// They are those of search_int4_factors. `rows` is the weight `[N, K]`.
std::shared_ptr<nn::FakeQuantizeInt4Impl> fit_factors(const torch::Tensor& rows,
                                                      const nn::FakeQuantizeInt4Impl& quantizer);

// One of these two.
std::shared_ptr<nn::Quantizer> fit(const torch::Tensor& rows, const nn::Quantizer& quantizer);

}  // namespace baraquant::workflow
