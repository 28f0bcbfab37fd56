// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the scaled family, run before any kernel on every device and under
// tracing.
#pragma once

#include "scaled/core_ops.h"

namespace baraquant::scaled {

// Checks the arguments; the factor is [input.size(-1)], or if per_row one for each row.
void check_scaled(const char* op, const ScaledArgs& args, bool per_row);
void check_transpose(const at::Tensor& input);
void check_draw(const at::Tensor& like, int64_t count);

}  // namespace baraquant::scaled
