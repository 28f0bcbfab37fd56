// SPDX-License-Identifier: BSD-3-Clause
// Transposes matrices of small elements through registers, without torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "machine/host_device.h"

namespace baraquant::int8_conv {

// A square of kBytes / sizeof(Lane) rows and columns, a vector for each row.
template <typename Lane, int kBytes>
struct Square {
  typedef Lane Vector __attribute__((vector_size(kBytes)));
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(Lane));

  // The lanes of the halves of a and b, in turns: a0 b0 a1 b1 ..
  template <int kFrom, int... i>
  BARAQUANT_HD static Vector alternating(Vector a, Vector b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (kFrom + i / 2 + (i % 2 ? kLanes : 0))...);
  }

  // to[j][i] = from[i][j], where a row has its next one `stride` elements further on.
  BARAQUANT_HD static void transpose(const Lane* from, int64_t from_stride, Lane* to,
                                     int64_t to_stride) {
    constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
    Vector rows[kLanes], next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) std::memcpy(&rows[i], from + i * from_stride, kBytes);
    // Each round takes the lanes of rows i and i + kLanes / 2 in turns.
#pragma GCC unroll 4
    for (int round = 1; round < kLanes; round *= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < kLanes / 2; ++i) {
        next[2 * i] = alternating<0>(rows[i], rows[i + kLanes / 2], kAll);
        next[2 * i + 1] = alternating<kLanes / 2>(rows[i], rows[i + kLanes / 2], kAll);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) std::memcpy(to + i * to_stride, &rows[i], kBytes);
  }
};

// Transposes by squares; the last ones overlap those before them. Needs a square's size at least.
template <typename Square, typename Lane>
BARAQUANT_HD void transpose_by(const Lane* from, int64_t from_stride, int64_t rows, int64_t columns,
                               Lane* to, int64_t to_stride) {
  constexpr int64_t kLanes = Square::kLanes;
  for (int64_t y = 0; y < rows; y += kLanes) {
    const int64_t i = std::min(y, rows - kLanes);
    for (int64_t x = 0; x < columns; x += kLanes) {
      const int64_t j = std::min(x, columns - kLanes);
      Square::transpose(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
    }
  }
}

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows and j < columns. The elements may
// have any type of Lane's size: they are only copied.
template <typename Lane>
BARAQUANT_HD void transpose(const Lane* from, int64_t from_stride, int64_t rows, int64_t columns,
                            Lane* to, int64_t to_stride) {
  using Wide = Square<Lane, 16>;
  const int64_t least = std::min(rows, columns);
  if (least >= Wide::kLanes) {
    transpose_by<Wide>(from, from_stride, rows, columns, to, to_stride);
    return;
  }
  if constexpr (Wide::kLanes > 4) {
    using Narrow = Square<Lane, 8>;
    if (least >= Narrow::kLanes) {
      transpose_by<Narrow>(from, from_stride, rows, columns, to, to_stride);
      return;
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(to + j * to_stride + i, from + i * from_stride + j, sizeof(Lane));
    }
  }
}

}  // namespace baraquant::int8_conv
