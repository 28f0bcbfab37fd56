// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// The mark of what libbaraquant.so offers to other programs; everything else is hidden.
#pragma once

#define BARAQUANT_API __attribute__((visibility("default")))
