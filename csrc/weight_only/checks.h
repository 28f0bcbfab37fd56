// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the op, run before any kernel on every device and under tracing.
#pragma once

#include "weight_only/core_ops.h"

namespace baraquant::weight_only {

// Checks that the dispatcher sends all tensors to this op's kernels.
void check_all_dispatchable(const LinearArgs& args);
void check_linear(const LinearArgs& args);

}  // namespace baraquant::weight_only
