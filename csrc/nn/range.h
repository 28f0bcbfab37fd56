// SPDX-License-Identifier: BSD-3-Clause
// The scale and the zero point of an observed range.
#pragma once

#include "api/ops.h"

namespace baraquant::nn {

// The weight of each batch in a moving average, the same as in torch.ao's observers.
constexpr double kAveragingConstant = 0.01;

// What choose_qparams gives for data with these ends; both `[]` or `[C]`. An empty range (inf, -inf)
// gets the ends 0, and so the scale 1. A NaN stays.
inline std::tuple<at::Tensor, at::Tensor> qparams_of_range(const at::Tensor& min_val,
                                                           const at::Tensor& max_val, int64_t low,
                                                           int64_t high, bool symmetric) {
  const auto ends = at::stack({min_val, max_val}).masked_fill(min_val > max_val, 0.0);
  if (ends.dim() == 1) return choose_qparams_per_tensor(ends, low, high, symmetric);
  return choose_qparams_per_channel(ends, 1, low, high, symmetric);
}

}  // namespace baraquant::nn
