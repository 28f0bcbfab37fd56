// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of a convolution of integers, run before any kernel on every device and under
// tracing.
#pragma once

#include <vector>

#include "int8_conv/core_ops.h"
#include "int8_conv/shape.h"

namespace baraquant::int8_conv {

// Checks all arguments and returns the sizes of the output.
std::vector<c10::SymInt> check_conv(const ConvArgs& args);

// Of checked arguments whose sizes are numbers.
Shape shape_of(const ConvArgs& args);

}  // namespace baraquant::int8_conv
