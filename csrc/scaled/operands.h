// SPDX-License-Identifier: BSD-3-Clause
// The arguments of the kernels of scaled quantization, without torch. launch.h says what they mean.
#pragma once

#include <cstdint>

#include "scaled/math.h"

namespace baraquant::scaled {

// A part of a row-major matrix: its element (m, n) is element number(m, n) of the whole.
template <typename T>
struct Matrix {
  const T* data;  // of the whole
  int64_t rows, columns;
  int64_t stride, first;

  BARAQUANT_HD int64_t number(int64_t m, int64_t n) const { return first + m * stride + n; }
};

template <typename T>
struct RowsParams {
  using C = ComputeType<T>;
  Matrix<T> input;
  const C* factor;      // [columns]
  const C* row_factor;  // [rows], for the maxima; null if they are not wanted
  Random random;
  int8_t* values;  // [rows, columns]
  C* scale;        // [rows]
  C* maxima;       // [columns]
  C* sums;         // [pieces, columns], as math.h adds up columns; null if they are not wanted
};

template <typename T>
struct ColumnsParams {
  using C = ComputeType<T>;
  Matrix<T> input;
  const C* factor;            // [rows]
  const int32_t* zero_point;  // [rows], for the sums; null if they are not wanted
  Random random;
  const C* maxima;  // [columns]
  int8_t* values;   // [columns, rows]
  C* scale;         // [columns]
  int32_t* sums;    // [columns]
};

// Rows whose scales are given, and came from them: values = clamp(rint(x / scale)), transposed.
template <typename T>
struct GivenParams {
  using C = ComputeType<T>;
  Matrix<T> input;
  const C* scale;  // [rows]
  affine::QuantRange<C> range;
  int8_t* values;  // [columns, rows]
};

}  // namespace baraquant::scaled
