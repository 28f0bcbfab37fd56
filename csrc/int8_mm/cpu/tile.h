// SPDX-License-Identifier: BSD-3-Clause
// What the blocked product (blocked.h) needs from an instruction set, without torch.
//
// Both operands are packed into words of 32 bits along the depth: 4 bytes if the machine multiplies
// bytes (VNNI, SDOT), else 2 numbers of 16 bits, whose products cannot saturate. A row of the input is
// packed in its own order. `columns` rows of the weight become a panel, whose layout is private to
// the kernel's tile() function.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
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

// Starts a tile's sums, rows of vectors, from `from` or from 0. NB: always inlined, so that they stay in
// registers.
template <typename Vector, int kRows, int kVectors>
BARAQUANT_HD void load_sums(Vector (&sums)[kRows][kVectors], const Sums& from, bool add) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto* const at = reinterpret_cast<const char*>(from.data + i * from.stride);
      if (add) {
        std::memcpy(&sums[i][v], at + v * sizeof(Vector), sizeof(Vector));
      } else {
        sums[i][v] = Vector{};
      }
    }
  }
}

template <typename Vector, int kRows, int kVectors>
BARAQUANT_HD void store_sums(const Vector (&sums)[kRows][kVectors], const Sums& to) {
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      auto* const at = reinterpret_cast<char*>(to.data + i * to.stride);
      std::memcpy(at + v * sizeof(Vector), &sums[i][v], sizeof(Vector));
    }
  }
}

// The rows of the weight that are packed next. While a tile multiplies, it fetches them into the
// cache: a line for each word of the depth.
struct Ahead {
  const uint8_t* rows = nullptr;  // or null: nothing is fetched
  int64_t stride = 0;             // bytes from one row to the next
  int64_t step = 0;               // bytes of a row that hold 64 elements

  // The address to fetch at a word of the depth, of which kWords hold 64 elements; of kRows rows.
  template <int kWords, int kRows>
  const uint8_t* at(int64_t word) const {
    return rows + word % kWords * kRows / kWords * stride + word / kWords * step;
  }
};

// The lines of the weight that are fetched into the cache while others are multiplied: `rate` lines in
// `steps` steps of 64 elements. `across` bytes lie between lines of a step, and `along` are added after
// each step.
struct Lines {
  const int8_t* line;  // the next one
  int64_t across, along, rate, steps;
  int64_t due = 0;

  // Fetches those of one step.
  __attribute__((always_inline)) void fetch() {
    for (due += rate; due > 0; due -= steps) {
      __builtin_prefetch(line);
      line += across;
    }
    line += along;
  }
};

// Rows of the input times a few rows of the weight, which are read as they lie.
struct Dots {
  PackedRows input;
  const int8_t* weight;
  int64_t count, k;  // of the weight's rows; more of them are neither read nor written
  Lines next;
  Sums sums;             // [input.count, count], to be written
  int32_t* weight_sums;  // [count], to be written too unless it is null

  const int8_t* row(int64_t j) const { return weight + std::min(j, count - 1) * k; }
};

// What pack_input adds to an input, so that the machine can multiply it: where it multiplies an
// unsigned byte with a signed one, 128 makes an int8 unsigned; where both are signed, -128 makes a
// uint8 signed. The sums are then too large by that times (sum over k of w[n, k]), which is
// subtracted with the help of weight_sums.
struct InputOffset {
  int32_t of_int8 = 0, of_uint8 = 0;

  // Whether a kernel with this offset always sums the rows of the weight.
  bool needs_sums() const { return of_int8 != 0 || of_uint8 != 0; }
};

struct CpuKernel {
  using Tile = void (*)(const PackedRows& input, const uint8_t* panel, int64_t words,
                        const Sums& sums, bool add, const Ahead& ahead);

  const char* name;
  int64_t columns;  // columns of a tile
  int64_t word;     // elements in a word: 4 or 2
  InputOffset input_offset;

  void (*pack_input)(const void* row, bool is_unsigned, int64_t k, int64_t padded, uint8_t* packed);
  // Packs `depth` elements of the rows 0 .. count - 1 of a weight whose rows are `stride` elements
  // apart. Zeros fill the last word, and any numbers stand in for missing rows. The rows' sums are
  // added to weight_sums[0 .. columns - 1]; null, without an input_offset alone, means that none are
  // wanted. The panel has room for the depth rounded up to kDepthUnit, and is aligned to a cache
  // line, as packed rows are.
  void (*pack_weight)(const int8_t* weight, int64_t stride, int64_t count, int64_t depth,
                      uint8_t* panel, int32_t* weight_sums);
  // tiles[r - 1] multiplies r rows of the input with all `columns` columns of a panel:
  // sums[i][j] = (add ? sums[i][j] : 0) + row i times column j.
  std::span<const Tile> tiles;
  // Up to so many rows of the input it is faster to call stream() than to pack the weight.
  int64_t streamed_rows;
  // For stream(): dots[r - 1] multiplies r rows of the input with one_wide (if r is 1) or more_wide
  // rows of the weight; first[r - 1] sums these as well.
  struct Streams {
    std::span<void (*const)(const Dots&)> first, dots;
    int64_t one_wide = 0, more_wide = 0;
  } streams = {};

  // Multiplies rows of the input with `count` rows of the weight as it lies, which is read from
  // memory once. It writes sums[i][0 .. count - 1], and weight_sums[0 .. count - 1], which may be null
  // as above.
  void stream(const PackedRows& input, const int8_t* weight, int64_t count, int64_t k,
              const Sums& sums, int32_t* weight_sums) const;

  // How many rows of the next panel one tile can fetch.
  int64_t fetched_rows() const { return std::min(columns, kDepthUnit / word); }
};

// Returns {of<1>(), ..., of<kMax>()}, where of<r>() is the function for r rows.
template <int kMax, typename Of>
constexpr auto for_each_count(const Of& of) {
  return [&]<int... kLess>(std::integer_sequence<int, kLess...>) {
    return std::array{of.template operator()<kLess + 1>()...};
  }(std::make_integer_sequence<int, kMax>());
}

constexpr int64_t kFetched = 16384;  // bytes of the weight that the L1 cache holds beside others

// What pass `p` of `passes` over rows of the weight fetches of the ones after them. Memory gives most if
// its lines are asked for one after the other. Rows that are too long for that are fetched as they are
// read, side by side, but for one or two rows of the input, which take no time.
inline Lines lines_of_pass(int64_t p, int64_t passes, int64_t wide, int64_t rows, int64_t k,
                           const int8_t* weight) {
  const int64_t bytes = wide * k;
  if (bytes <= kFetched || rows <= 2) {
    return {weight + std::max(bytes, kFetched) + p * (bytes / passes), 64, 0, wide, passes};
  }
  const int64_t share = (wide + passes - 1) / passes;
  const int64_t fetched = std::clamp<int64_t>(wide - p * share, 0, share);
  return {weight + bytes + p * share * k, k, 64 - fetched * k, fetched, 1};
}

// It multiplies `wide` rows of the weight at a time, which stay in the cache, with the input in passes.
inline void CpuKernel::stream(const PackedRows& input, const int8_t* weight, int64_t count,
                              int64_t k, const Sums& sums, int32_t* weight_sums) const {
  const auto& [first, dots, one_wide, more_wide] = streams;
  const int64_t wide = input.count == 1 ? one_wide : more_wide;
  const int64_t most = static_cast<int64_t>(dots.size());
  const int64_t passes = (input.count + most - 1) / most;
  for (int64_t n = 0; n < count; n += wide) {
    for (int64_t p = 0; p < passes; ++p) {  // of nearly equal heights
      const int64_t from = p * input.count / passes, to = (p + 1) * input.count / passes;
      const int8_t* const rows = weight + n * k;
      (p == 0 && weight_sums ? first : dots)[to - from - 1](
          {.input = {input.data + from * input.stride, input.stride, to - from},
           .weight = rows,
           .count = std::min(wide, count - n),
           .k = k,
           .next = lines_of_pass(p, passes, wide, input.count, k, rows),
           .sums = {sums.data + from * sums.stride + n, sums.stride},
           .weight_sums = weight_sums ? weight_sums + n : nullptr});
    }
  }
}

// pack_input for bytes, which all become unsigned, or all signed: flipping the highest bit adds 128
// to an int8 and -128 to a uint8. The padding is multiplied by zeros of the weight.
template <bool kToUnsigned>
void pack_bytes(const void* row, bool is_unsigned, int64_t k, int64_t padded, uint8_t* packed) {
  const uint8_t* __restrict const from = static_cast<const uint8_t*>(row);
  uint8_t* __restrict const to = packed;
  const uint8_t flip = is_unsigned == kToUnsigned ? 0 : 0x80;
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
