// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of sizes, without torch or CUDA.
#pragma once

#include <cstdint>

#include "machine/host_device.h"

namespace baraquant {

constexpr BARAQUANT_HD int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The base-2 logarithm of the smallest power of two that is at least n, limited to `max`.
constexpr BARAQUANT_HD int log2_up(int64_t n, int max) {
  int log2 = 0;
  while (log2 < max && (int64_t(1) << log2) < n) ++log2;
  return log2;
}

}  // namespace baraquant
