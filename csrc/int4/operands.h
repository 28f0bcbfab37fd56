// SPDX-License-Identifier: BSD-3-Clause
// The arguments of the kernels of four-bit weights, without torch. All matrices are row-major and
// contiguous.
#pragma once

#include "int4/math.h"
#include "machine/integers.h"

namespace baraquant::int4 {

// Chooses the scale [rows] of each row, and the factor and the zero point [rows, groups] of its
// groups.
template <typename T>
struct ChooseParams {
  using C = ComputeType<T>;
  const T* weight;  // [rows, columns]
  int64_t rows, columns, group_size;
  bool symmetric;
  Width width;
  C* scale;
  uint8_t *factor, *zero_point;

  BARAQUANT_HD int64_t groups() const { return divide_up(columns, group_size); }
};

// Quantizes a weight with given scales to `packed`, whose values are `target`.
template <typename T>
struct QuantizeParams {
  const T* weight;  // [rows, columns]
  int64_t rows;
  const ComputeType<T>* scale;  // [rows]
  Width width;
  Packed packed;
  uint8_t* target;
};

// Turns a packed weight into int8 [rows, columns].
struct ExpandParams {
  Packed packed;
  int64_t rows;
  int8_t* target;
};

// Packs integers of -8 .. 7; only the low four bits of others count.
struct PackParams {
  const int8_t* integers;  // [rows, columns]
  int64_t rows, columns;
  uint8_t* target;  // [rows, packed_size(columns)]
};

}  // namespace baraquant::int4
