// SPDX-License-Identifier: BSD-3-Clause
// What a kernel of the integer matrix product gets, free of torch. Matrices are row-major and
// contiguous, of any alignment.
#pragma once

#include <cstdint>

#include "machine/host_device.h"
#include "machine/integers.h"

namespace baraquant::int8_mm {

// A number for each row of the input (stride 1), one for all (stride 0), or one that the host knows
// (data is null).
template <typename T>
struct OfRows {
  const T* data = nullptr;
  int64_t stride = 0;
  T value{};

  BARAQUANT_HD T at(int64_t m) const { return data ? data[m * stride] : value; }
  BARAQUANT_HD void begin_at(int64_t m) {
    if (data) data += m * stride;
  }
};

// m, n > 0; k >= 0. A grouped product has `groups` weights: rows ends[g - 1] to ends[g] of the
// input (from 0 for the first) are multiplied by weight g, and the output is 0 behind the last of
// them. What is [n, k] or [n] here then is [groups, n, k] or [groups, n].
struct Operands {
  int64_t m = 0, n = 0, k = 0;
  const void* input = nullptr;  // [m, k], int8_t, or uint8_t where is_unsigned
  bool is_unsigned = false;
  const int8_t* weight = nullptr;  // [n, k]
  int64_t groups = 1;
  const int32_t* ends = nullptr;  // [groups]; null: the product is not grouped

  bool is_grouped() const { return ends != nullptr; }
  int64_t weight_rows() const { return groups * n; }
  BARAQUANT_HD void choose_group(int64_t g) { weight += g * n * k; }
};

// From the sums to the output.
template <typename C>
struct Rescaling {
  OfRows<C> input_scale;
  OfRows<int32_t> zero_point;
  const int32_t* weight_sum = nullptr;  // [n]; null: there is no zero point
  const C* weight_scale = nullptr;      // [n]
  const C* bias = nullptr;              // [n]; null: there is none

  // What belongs to the columns becomes that of group g.
  BARAQUANT_HD void choose_group(int64_t g, int64_t n) {
    if (weight_sum) weight_sum += g * n;
    weight_scale += g * n;
    if (bias) bias += g * n;
  }
  // What belongs to the rows begins at row m.
  BARAQUANT_HD void begin_at(int64_t m) {
    input_scale.begin_at(m);
    zero_point.begin_at(m);
  }
};

// The rows begin .. end - 1 of a group. NB: ends that do not ascend, or lie beyond the input, are
// taken as the nearest that do: every row belongs to one group at most.
struct GroupRows {
  int64_t begin = 0, end = 0;

  // The rows of the group behind this one.
  BARAQUANT_HD GroupRows next(int64_t next_end, int64_t rows) const {
    const int64_t inside = next_end < rows ? next_end : rows;
    return {end, inside > end ? inside : end};
  }
};

}  // namespace baraquant::int8_mm
