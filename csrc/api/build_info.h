// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// What libbaraquant.so was built with: `baraquant::build_info()`.
#pragma once

#include "frame/build_info.h"
