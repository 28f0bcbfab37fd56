// SPDX-License-Identifier: BSD-3-Clause
// ARM's SDOT adds four products of signed bytes to an int32, without saturation. Both operands are
// signed: a uint8 of the input less 128. A vector has 128 bits, and there are 32 of them.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "int8_mm/cpu/tile.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm::neon_dotprod {

// Registers: 24 for sums, 6 for the input (four words of a row in each) and 2 for the weight.
constexpr int kRows = 6, kVectors = 4, kLanes = 4, kColumns = kVectors * kLanes;
constexpr int64_t kBytes = 16;  // of a vector: so many elements of the depth, which are four words
constexpr int64_t kWordBytes = kColumns * 4;  // of a panel, for one word of every column

BARAQUANT_NEON_DOTPROD inline int8x16_t load(const uint8_t* from) {
  return vreinterpretq_s8_u8(vld1q_u8(from));
}

// Multiplies one of the four words of each row of the input with all columns. The instruction holds
// the word's number as a constant.
template <int kWord, int kCount>
BARAQUANT_NEON_DOTPROD __attribute__((always_inline)) inline void multiply_word(
    int32x4_t (&sums)[kCount][kVectors], const int8x16_t (&a)[kCount], const uint8_t* columns) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int8x16_t w = load(columns + v * kBytes);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) sums[i][v] = vdotq_laneq_s32(sums[i][v], w, a[i], kWord);
  }
  asm("" ::: "memory");  // else GCC loads what the registers cannot hold
}

// NB: the words of the last vector that lie beyond the depth are zeros of the weight.
template <int kCount>
BARAQUANT_NEON_DOTPROD void tile(const PackedRows& input, const uint8_t* panel, int64_t words,
                                 const Sums& out, bool add, const Ahead& ahead) {
  int32x4_t sums[kCount][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = add ? vld1q_s32(out.data + i * out.stride + v * kLanes) : vdupq_n_s32(0);
    }
  }
  for (int64_t g = 0; g < words; g += 4) {
    int8x16_t a[kCount];
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) a[i] = load(input.data + i * input.stride + 4 * g);
    if (ahead.rows) {
#pragma GCC unroll 4
      for (int64_t word = g; word < g + 4; ++word) {
        __builtin_prefetch(ahead.at<16, kColumns>(word), 0, 2);
      }
    }
    multiply_word<0>(sums, a, panel);
    multiply_word<1>(sums, a, panel + kWordBytes);
    multiply_word<2>(sums, a, panel + 2 * kWordBytes);
    multiply_word<3>(sums, a, panel + 3 * kWordBytes);
    panel += 4 * kWordBytes;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      vst1q_s32(out.data + i * out.stride + v * kLanes, sums[i][v]);
    }
  }
}

// Turns 4 rows of 16 bytes into 4 vectors: vector g has the bytes 4g .. 4g + 3 of each row.
BARAQUANT_NEON_DOTPROD inline void transpose(int8x16_t (&r)[4]) {
  int32x4_t x[4];
  for (int i = 0; i < 4; ++i) x[i] = vreinterpretq_s32_s8(r[i]);
  const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(x[0], x[1]));  // words 0 and 2 of both
  const int64x2_t b = vreinterpretq_s64_s32(vtrn2q_s32(x[0], x[1]));  // words 1 and 3
  const int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(x[2], x[3]));
  const int64x2_t d = vreinterpretq_s64_s32(vtrn2q_s32(x[2], x[3]));
  r[0] = vreinterpretq_s8_s64(vtrn1q_s64(a, c));
  r[1] = vreinterpretq_s8_s64(vtrn1q_s64(b, d));
  r[2] = vreinterpretq_s8_s64(vtrn2q_s64(a, c));
  r[3] = vreinterpretq_s8_s64(vtrn2q_s64(b, d));
}

// The elements k .. k + 15 of a row of `depth` elements; zeros after its end.
BARAQUANT_NEON_DOTPROD inline int8x16_t load(const int8_t* row, int64_t k, int64_t depth) {
  if (k + kBytes <= depth) return vld1q_s8(row + k);
  int8_t last[kBytes] = {};
  std::memcpy(last, row + k, static_cast<size_t>(depth - k));
  return vld1q_s8(last);
}

BARAQUANT_NEON_DOTPROD inline void pack_weight(const int8_t* weight, int64_t stride, int64_t count,
                                               int64_t depth, uint8_t* panel,
                                               int32_t* weight_sums) {
  const int8x16_t ones = vdupq_n_s8(1);
  for (int v = 0; v < kVectors; ++v) {
    const int8_t* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      rows[i] = weight + std::min<int64_t>(v * kLanes + i, count - 1) * stride;
    }
    int32x4_t sums = vld1q_s32(weight_sums + v * kLanes);
    for (int64_t k = 0; k < depth; k += kBytes) {
      int8x16_t words[4];
      for (int i = 0; i < kLanes; ++i) words[i] = load(rows[i], k, depth);
      transpose(words);
      uint8_t* const to = panel + k * kColumns + v * kBytes;
      for (int g = 0; g < 4; ++g) {
        sums = vdotq_s32(sums, words[g], ones);
        vst1q_s8(reinterpret_cast<int8_t*>(to + g * kWordBytes), words[g]);
      }
    }
    vst1q_s32(weight_sums + v * kLanes, sums);
  }
}

// Registers: at most 20 for sums of the input and 4 of the weight, one of the weight, one of ones
// and those of the input: 31 of 32.
constexpr int kStreamed = 4, kPass = 5;

// Multiplies the elements at .. at + 15 of kCount input rows with 16 elements of kStreamed weight
// rows, which start at `from`. If kSums, the last row of `sums` adds those of the weight alone.
template <int kCount, bool kSums>
BARAQUANT_NEON_DOTPROD __attribute__((always_inline)) inline void multiply(
    int32x4_t (&sums)[kCount + kSums][kStreamed], const PackedRows& input, int64_t at,
    const int8_t* const (&rows)[kStreamed], int64_t from) {
  int8x16_t a[kCount];
#pragma GCC unroll 5
  for (int i = 0; i < kCount; ++i) a[i] = load(input.data + i * input.stride + at);
#pragma GCC unroll 4
  for (int j = 0; j < kStreamed; ++j) {
    const int8x16_t w = vld1q_s8(rows[j] + from);
#pragma GCC unroll 5
    for (int i = 0; i < kCount; ++i) sums[i][j] = vdotq_s32(sums[i][j], w, a[i]);
    if (kSums) sums[kCount][j] = vdotq_s32(sums[kCount][j], w, vdupq_n_s8(1));
  }
}

// to[j] = the sum over the lanes of x[j], for the first `count` of them.
BARAQUANT_NEON_DOTPROD inline void store_sums(const int32x4_t (&x)[kStreamed], int64_t count,
                                              int32_t* to) {
  const int32x4_t sums = vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
  if (count >= kStreamed) return vst1q_s32(to, sums);
  int32_t all[kStreamed];
  vst1q_s32(all, sums);
  for (int64_t j = 0; j < count; ++j) to[j] = all[j];
}

// Multiplies kCount rows of the input with kStreamed of the weight, and sums these if kSums.
template <int kCount, bool kSums>
BARAQUANT_NEON_DOTPROD void dots(const Dots& d) {
  const int64_t k = d.k;
  Lines next = d.next;
  const int8_t* rows[kStreamed] = {d.row(0), d.row(1), d.row(2), d.row(3)};
  int32x4_t sums[kCount + kSums][kStreamed];
#pragma GCC unroll 6
  for (int i = 0; i < kCount + kSums; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kStreamed; ++j) sums[i][j] = vdupq_n_s32(0);
  }
  int64_t at = 0;
  for (; at + 64 <= k; at += 64) {
    next.fetch();
#pragma GCC unroll 1  // else GCC loads what the registers cannot hold
    for (int64_t step = at; step < at + 64; step += kBytes) {
      multiply<kCount, kSums>(sums, d.input, step, rows, step);
    }
  }
  for (; at + kBytes <= k; at += kBytes) multiply<kCount, kSums>(sums, d.input, at, rows, at);
  if (at < k) {
    int8_t last[kStreamed][kBytes] = {};
    for (int j = 0; j < kStreamed; ++j) {
      std::memcpy(last[j], rows[j] + at, static_cast<size_t>(k - at));
      rows[j] = last[j];
    }
    multiply<kCount, kSums>(sums, d.input, at, rows, 0);
  }
#pragma GCC unroll 5
  for (int i = 0; i < kCount; ++i) store_sums(sums[i], d.count, d.sums.data + i * d.sums.stride);
  if (kSums) store_sums(sums[kCount], d.count, d.weight_sums);
}

inline constexpr auto kFirst = for_each_count<kPass>([]<int rows> { return &dots<rows, true>; });
inline constexpr auto kDots = for_each_count<kPass>([]<int rows> { return &dots<rows, false>; });
inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel::Streams kStreams{kFirst, kDots, kStreamed, kStreamed};
// NB: the number of streamed rows is that of VNNI, as no machine was at hand to measure it.
inline constexpr CpuKernel kKernel{"int8_mm_neon_dotprod",
                                   kColumns,
                                   4,
                                   {.of_uint8 = -128},
                                   &pack_bytes<false>,
                                   &pack_weight,
                                   kTiles,
                                   16,
                                   kStreams};

}  // namespace baraquant::int8_mm::neon_dotprod
#endif
