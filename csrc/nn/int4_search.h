// SPDX-License-Identifier: BSD-3-Clause
// The search for the factors of four-bit weights: tries all, and takes the least squared error.
#pragma once

#include "api/nn/int4.h"

namespace baraquant::nn {

// The scale `[N]`, and the factors and zero points `[N, groups]`, that fit the rows `[N, K]` best.
//
// The scale of a row stays that of choose_int4_qparams. For each group all factors are tried, from 16
// down to 1, and the one with the minimum squared error is taken, of two equal ones the larger. A
// group with a zero point tries, for each factor, the one for its least value and the one for the
// middle of its range.
PackedInt4 searched_factors(const torch::Tensor& rows, int64_t group_size, bool symmetric);

}  // namespace baraquant::nn
