// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of sizes, without torch or CUDA.
#pragma once

#include <cstdint>

#include "machine/host_device.h"

namespace baraquant {

constexpr BARAQUANT_HD int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The same for a size of which a + b - 1 might overflow: of an empty tensor, up to 2^63 - 1.
constexpr int64_t divide_size_up(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The base-2 logarithm of the smallest power of two that is at least n, limited to `max`.
constexpr BARAQUANT_HD int log2_up(int64_t n, int max) {
  int log2 = 0;
  while (log2 < max && (int64_t(1) << log2) < n) ++log2;
  return log2;
}

}  // namespace baraquant
