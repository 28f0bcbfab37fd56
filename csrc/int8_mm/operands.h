// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a kernel of the integer matrix product, without torch. Matrices are row-major
// and contiguous, and may have any alignment.
#pragma once

#include <cstdint>
#include <type_traits>

#include "int4/math.h"
#include "machine/float_types.h"
#include "machine/host_device.h"
#include "machine/integers.h"

namespace baraquant::int8_mm {

// A number for each row of the input (stride 1), one number for all rows (stride 0), or one for all
// that the host knows (data is null).
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

// m, n > 0; k >= 0. A grouped product has `groups` weights: the rows ends[g - 1] .. ends[g] - 1 of
// the input (from 0 for the first group) are multiplied by weight g, and the output is 0 after the
// last of them. Shapes given as [n, k] and [n] are then [groups, n, k] and [groups, n].
struct Operands {
  int64_t m = 0, n = 0, k = 0;
  const void* input = nullptr;  // [m, k] of int8_t, or of uint8_t if is_unsigned
  bool is_unsigned = false;
  const int8_t* weight = nullptr;  // [n, k]; null if it is packed
  int4::Packed packed = {};
  bool input_is_newest = false;    // what ran last in the stream wrote the input, not the weight
  bool wants_weight_sums = false;  // the zero points need the sums of the weight, which none gave
  int64_t groups = 1;
  const int32_t* ends = nullptr;  // [groups]; null means that the product is not grouped

  bool is_grouped() const { return ends != nullptr; }
  bool is_packed() const { return packed.values != nullptr; }
  int64_t weight_rows() const { return groups * n; }
  BARAQUANT_HD void choose_group(int64_t g) { weight += g * n * k; }
};

// What turns the sums into the output (int8_mm/math.h). Without weight_scale the output is the sums
// themselves, as int32; C is float then.
template <typename C>
struct Rescaling {
  OfRows<C> input_scale;
  bool has_zero_point = false;
  OfRows<int32_t> zero_point;
  int32_t least_zero_point = INT32_MIN, greatest_zero_point = INT32_MAX;
  const int32_t* weight_sum = nullptr;  // [n]; may be null if a kernel finds the sums itself
  const C* weight_scale = nullptr;      // [n]; null means that the sums are wanted
  const C* bias = nullptr;              // [n]; null means no bias

  // int8 or uint8 holds every zero point: one outside of it counts as the nearest that it holds, and
  // int32 then holds every sum.
  void limit_zero_points(bool is_unsigned) {
    least_zero_point = is_unsigned ? 0 : -128;
    greatest_zero_point = least_zero_point + 255;
  }
  BARAQUANT_HD int32_t zero_point_of(int64_t m) const {
    if (!has_zero_point) return 0;
    const int32_t given = zero_point.at(m);
    const int32_t raised = given < least_zero_point ? least_zero_point : given;
    return raised > greatest_zero_point ? greatest_zero_point : raised;
  }
  BARAQUANT_HD bool wants_sums() const {
    return std::is_same_v<C, float> && weight_scale == nullptr;
  }
  // Moves the vectors of the columns to those of group g.
  BARAQUANT_HD void choose_group(int64_t g, int64_t n) {
    if (weight_sum) weight_sum += g * n;
    weight_scale += g * n;
    if (bias) bias += g * n;
  }
  // Moves the vectors of the rows to row m.
  BARAQUANT_HD void begin_at(int64_t m) {
    input_scale.begin_at(m);
    zero_point.begin_at(m);
  }
};

// A product whose output is [m, n] of T.
template <typename T>
struct ProductParams {
  Operands operands;
  Rescaling<ComputeType<T>> rescaling;
  T* output;
};

// The rows begin .. end - 1 of a group. NB: an end that does not ascend or lies beyond the input is
// replaced by the nearest valid one, so every row belongs to at most one group.
struct GroupRows {
  int64_t begin = 0, end = 0;

  // The rows of the group that follows this one.
  BARAQUANT_HD GroupRows next(int64_t next_end, int64_t rows) const {
    const int64_t inside = next_end < rows ? next_end : rows;
    return {end, inside > end ? inside : end};
  }
};

}  // namespace baraquant::int8_mm
