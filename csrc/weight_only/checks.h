// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the op, run before any kernel on every device and under tracing.
#pragma once

#include "weight_only/core_ops.h"

namespace baraquant::weight_only {

void check_linear(const LinearArgs& args);

}  // namespace baraquant::weight_only
