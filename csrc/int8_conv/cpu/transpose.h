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

// Squares of 16 bytes, two beside each other in a vector: row i of the second is in the upper half of
// vector i, and so is its column.
struct TwoSquares {
  typedef uint8_t Half __attribute__((vector_size(16)));
  typedef uint8_t Vector __attribute__((vector_size(32)));
  static constexpr int kLanes = 16, kBoth = 32;

  // The bytes of half of a and of b, in turns, within each square.
  template <int kFrom, int... i>
  BARAQUANT_HD static void alternate(const Vector& a, const Vector& b, Vector& to,
                                     std::integer_sequence<int, i...>) {
    to = __builtin_shufflevector(a, b, (i / 16 * 16 + kFrom + i % 16 / 2 + (i % 2 ? 32 : 0))...);
  }

  template <int... i>
  BARAQUANT_HD static void join(const uint8_t* first, const uint8_t* second, Vector& to,
                                std::integer_sequence<int, i...>) {
    Half a, b;
    std::memcpy(&a, first, sizeof(a));
    std::memcpy(&b, second, sizeof(b));
    to = __builtin_shufflevector(a, b, i...);
  }

  BARAQUANT_HD static void transpose(Vector (&rows)[kLanes]) {
    constexpr auto kAll = std::make_integer_sequence<int, kBoth>();
    Vector next[kLanes];
#pragma GCC unroll 4
    for (int round = 1; round < kLanes; round *= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < kLanes / 2; ++i) {
        alternate<0>(rows[i], rows[i + kLanes / 2], next[2 * i], kAll);
        alternate<kLanes / 2>(rows[i], rows[i + kLanes / 2], next[2 * i + 1], kAll);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
    }
  }
};

// to[j * rows + i] = from[i * columns + j]. NB: columns need not fill the vectors, which are read whole:
// up to 15 of the `readable` bytes from `from` on that lie behind a row.
BARAQUANT_HD void transpose_rows(const uint8_t* from, int64_t readable, int64_t rows,
                                 int64_t columns, uint8_t* to) {
  constexpr int64_t kLanes = TwoSquares::kLanes, kBoth = TwoSquares::kBoth;
  constexpr auto kAll = std::make_integer_sequence<int, TwoSquares::kBoth>();
  if (rows < kBoth) return transpose(from, columns, rows, columns, to, rows);
  for (int64_t x = 0; x < columns; x += kLanes) {
    const int64_t width = std::min(kLanes, columns - x);
    for (int64_t y = 0; y < rows; y += kBoth) {
      const int64_t i = std::min(y, rows - kBoth);
      const uint8_t* const first = from + i * columns + x;
      uint8_t* const target = to + x * rows + i;
      if ((i + kBoth - 1) * columns + x + kLanes > readable) {
        transpose(first, columns, kBoth, width, target, rows);
        continue;
      }
      TwoSquares::Vector square[kLanes];
#pragma GCC unroll 16
      for (int64_t l = 0; l < kLanes; ++l) {
        TwoSquares::join(first + l * columns, first + (l + kLanes) * columns, square[l], kAll);
      }
      TwoSquares::transpose(square);
#pragma GCC unroll 16
      for (int64_t j = 0; j < kLanes; ++j) {
        if (j < width) std::memcpy(target + j * rows, &square[j], sizeof(square[j]));
      }
    }
  }
}

// to[c * count + p] = from[starts[p] + c] for p < count, which is at most 16, and c < columns, which
// are 32 at least. NB: vectors are written whole: up to 15 bytes behind the last column's.
BARAQUANT_HD void transpose_scattered(const uint8_t* from, const int64_t* starts, int64_t count,
                                      int64_t columns, uint8_t* to) {
  constexpr int64_t kLanes = TwoSquares::kLanes, kBoth = TwoSquares::kBoth;
  constexpr auto kAll = std::make_integer_sequence<int, TwoSquares::kBoth>();
  for (int64_t x = 0; x < columns; x += kBoth) {
    const int64_t c = std::min(x, columns - kBoth);
    TwoSquares::Vector square[kLanes] = {};
#pragma GCC unroll 16
    for (int64_t p = 0; p < kLanes; ++p) {
      if (p >= count) continue;
      const uint8_t* const row = from + starts[p] + c;
      TwoSquares::join(row, row + kLanes, square[p], kAll);
    }
    TwoSquares::transpose(square);
    alignas(32) uint8_t all[kLanes][kBoth];
    std::memcpy(all, square, sizeof(all));
    for (int64_t half = 0; half < kBoth; half += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) {
        std::memcpy(to + (c + half + j) * count, all[j] + half, kLanes);
      }
    }
  }
}

}  // namespace baraquant::int8_conv
