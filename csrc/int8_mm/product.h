// SPDX-License-Identifier: BSD-3-Clause
// What a kernel of the integer matrix product gets, free of torch. Matrices are row-major and
// contiguous, of any alignment.
#pragma once

#include <cstdint>

#include "host_device.h"

namespace baraquant::int8_mm {

// A number for each row of the input (stride 1), one for all (stride 0), or one that the host knows
// (data is null).
template <typename T>
struct OfRows {
  const T* data = nullptr;
  int64_t stride = 0;
  T value{};

  BARAQUANT_HD T at(int64_t m) const { return data ? data[m * stride] : value; }
};

// m, n > 0; k >= 0.
struct Factors {
  int64_t m = 0, n = 0, k = 0;
  const void* input = nullptr;  // [m, k], int8_t, or uint8_t where is_unsigned
  bool is_unsigned = false;
  const int8_t* weight = nullptr;  // [n, k]
};

// From the sums to the output.
template <typename C>
struct Rescaling {
  OfRows<C> input_scale;
  OfRows<int32_t> zero_point;
  const int32_t* weight_sum = nullptr;  // [n]; null: there is no zero point
  const C* weight_scale = nullptr;      // [n]
  const C* bias = nullptr;              // [n]; null: there is none
};

}  // namespace baraquant::int8_mm
