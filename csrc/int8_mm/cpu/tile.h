// SPDX-License-Identifier: BSD-3-Clause
// What the blocked product (blocked.h) needs from an instruction set, without torch.
//
// Both operands are packed into words of 32 bits along the depth: 4 bytes if the machine multiplies
// bytes (VNNI), else 2 numbers of 16 bits, whose products cannot saturate. A row of the input is
// packed in its own order. `columns` rows of the weight become a panel, whose layout is private to
// the kernel's tile() function.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "machine/host_device.h"

namespace baraquant::int8_mm {

// The depth of a packed row is a multiple of this many elements, so no vector load exceeds the row.
constexpr int64_t kDepthUnit = 64;

// Rows of the packed input, `stride` bytes from one to the next.
struct PackedRows {
  const uint8_t* data;
  int64_t stride;
  int64_t count;
};

// int32 sums, `stride` elements from one row to the next.
struct Sums {
  int32_t* data;
  int64_t stride;
};

struct CpuKernel {
  using Tile = void (*)(const PackedRows& input, const uint8_t* panel, int64_t words,
                        const Sums& sums, bool add);
  using Stream = void (*)(const PackedRows& input, const int8_t* weight, int64_t count, int64_t k,
                          const Sums& sums, int32_t* weight_sums);

  const char* name;
  int64_t columns;  // columns of a tile
  int64_t word;     // elements in a word: 4 or 2
  // Added to an int8 input to make it unsigned. The sums are then too large by input_offset * (sum
  // over k of w[n, k]), which is subtracted with the help of weight_sums.
  int32_t input_offset;

  void (*pack_input)(const void* row, bool is_unsigned, int64_t k, int64_t padded, uint8_t* packed);
  // Packs `depth` elements of the rows 0 .. count - 1 of a weight whose rows are `stride` elements
  // apart. Zeros fill the last word, and any numbers stand in for missing rows. If there is an
  // input_offset, the rows' sums are added to weight_sums[0 .. columns - 1]. The panel has room for
  // the depth rounded up to kDepthUnit, and is aligned to a cache line, as packed rows are.
  void (*pack_weight)(const int8_t* weight, int64_t stride, int64_t count, int64_t depth,
                      uint8_t* panel, int32_t* weight_sums);
  // tiles[r - 1] multiplies r rows of the input with all `columns` columns of a panel:
  // sums[i][j] = (add ? sums[i][j] : 0) + row i times column j.
  std::span<const Tile> tiles;
  // streams[r - 1] multiplies r rows with `count` rows of the weight as it lies, which is read
  // once. It writes sums[i][0 .. count - 1], and weight_sums[0 .. count - 1] if there is an
  // input_offset.
  std::span<const Stream> streams;
};

// Returns {of<1>(), ..., of<kMax>()}, where of<r>() is the function for r rows.
template <typename Function, int kMax, typename Of>
constexpr std::array<Function, kMax> for_each_count(const Of& of) {
  return [&]<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array<Function, kMax>{of.template operator()<kLess + 1>()...};
  }(std::make_integer_sequence<int, kMax>());
}

// pack_input for bytes: an int8 becomes unsigned by adding 128. The padding is multiplied by zeros
// of the weight.
inline void pack_bytes(const void* row, bool is_unsigned, int64_t k, int64_t padded,
                       uint8_t* packed) {
  const uint8_t* __restrict const from = static_cast<const uint8_t*>(row);
  uint8_t* __restrict const to = packed;
  const uint8_t flip = is_unsigned ? 0 : 0x80;
  for (int64_t i = 0; i < k; ++i) to[i] = from[i] ^ flip;
  for (int64_t i = k; i < padded; ++i) to[i] = 0;
}

template <typename T>
BARAQUANT_HD void widen(const T* __restrict from, int64_t count, int64_t padded,
                        int16_t* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  for (int64_t i = count; i < padded; ++i) to[i] = 0;
}

// pack_input for 16-bit numbers.
inline void pack_wide(const void* row, bool is_unsigned, int64_t k, int64_t padded,
                      uint8_t* packed) {
  int16_t* const to = reinterpret_cast<int16_t*>(packed);
  is_unsigned ? widen(static_cast<const uint8_t*>(row), k, padded, to)
              : widen(static_cast<const int8_t*>(row), k, padded, to);
}

}  // namespace baraquant::int8_mm
