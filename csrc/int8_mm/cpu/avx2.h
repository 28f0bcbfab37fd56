// SPDX-License-Identifier: BSD-3-Clause
// AVX2: the operands are widened to 16 bits, and vpmaddwd adds their products in pairs to int32.
// The 8-bit multiply-add of these machines (vpmaddubsw) saturates, so it is not used.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "int8_mm/cpu/tile.h"
#include "machine/cpu_isa.h"
#include "machine/lanes.h"

namespace baraquant::int8_mm::avx2 {

// Registers: 12 for sums, 2 for the weight, 1 for the input and 1 for a product, which is all 16.
constexpr int kRows = 6, kVectors = 2, kLanes = 8, kColumns = kVectors * kLanes;

template <int kCount>
BARAQUANT_AVX2 void tile(const PackedRows& input, const uint8_t* panel, int64_t words,
                         const Sums& out, bool add, const Ahead& ahead) {
  __m256i sums[kCount][kVectors];
  load_sums(sums, out, add);
  const int64_t stride = input.stride;
  const uint8_t* rows[2] = {input.data, input.data + 3 * stride};
  const __m256i* w = reinterpret_cast<const __m256i*>(panel);
#pragma GCC unroll 2
  for (int64_t g = 0; g < words; ++g) {
    const __m256i w0 = _mm256_load_si256(w), w1 = _mm256_load_si256(w + 1);
    w += kVectors;
    if (ahead.rows) _mm_prefetch(ahead.at<32, kColumns>(g), _MM_HINT_T1);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      int32_t word;
      std::memcpy(&word, rows[i / 3] + i % 3 * stride, 4);
      const __m256i a = _mm256_set1_epi32(word);
      sums[i][0] = _mm256_add_epi32(sums[i][0], _mm256_madd_epi16(a, w0));
      sums[i][1] = _mm256_add_epi32(sums[i][1], _mm256_madd_epi16(a, w1));
    }
    for (const uint8_t*& row : rows) row += 4;
  }
  store_sums(sums, out);
}

// Turns the bytes k .. k + 15 of eight rows into words of two 16-bit numbers; word g of all rows
// goes to `to` + g * step. Returns the sums of the 16-bit numbers at each place of the words.
BARAQUANT_AVX2 inline __m256i transpose(const int8_t* const (&rows)[8], int64_t k, uint8_t* to,
                                        int64_t step) {
  // Vector j holds the 16 bytes of row j, then those of row j + 4.
  __m256i r[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + k));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j + 4] + k));
    r[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
  const __m256i c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
  const __m256i quads[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                            _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
  // `first` puts the two low bytes of each quad into the upper halves of two 16-bit numbers,
  // `second` the two high bytes; an arithmetic shift extends their sign. (The other bytes do not
  // matter.)
  const __m256i first = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, 0, 1, 4, 4, 4, 5, 8, 8, 8, 9, 12, 12, 12, 13));
  const __m256i second = _mm256_add_epi8(first, _mm256_set1_epi8(2));
  __m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m256i first_pair = _mm256_srai_epi16(_mm256_shuffle_epi8(quads[g], first), 8);
    const __m256i second_pair = _mm256_srai_epi16(_mm256_shuffle_epi8(quads[g], second), 8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 2 * g * step), first_pair);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + (2 * g + 1) * step), second_pair);
    sums = _mm256_add_epi16(sums, _mm256_add_epi16(first_pair, second_pair));
  }
  return sums;
}

// Packs a panel of kWide columns, and sums these if kSums.
template <int kWide, bool kSums>
BARAQUANT_AVX2 void pack_panel(const int8_t* weight, int64_t stride, int64_t count, int64_t depth,
                               uint8_t* panel, int32_t* weight_sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int64_t kStep = kWide * 4;  // bytes that one word of every column takes
  for (int64_t n = 0; n < kWide; n += 8) {
    const int8_t* rows[8];
    for (int i = 0; i < 8; ++i) {
      rows[i] = weight + std::min<int64_t>(n + i, count - 1) * stride;
    }
    __m256i sums = _mm256_setzero_si256();
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
      const __m256i pairs = transpose(rows, k, panel + k / 2 * kStep + n * 4, kStep);
      if (kSums) sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
    }
    if (k < depth) {
      int8_t last[8][16] = {};
      for (int i = 0; i < 8; ++i) {
        std::memcpy(last[i], rows[i] + k, static_cast<size_t>(depth - k));
        rows[i] = last[i];
      }
      const __m256i pairs = transpose(rows, 0, panel + k / 2 * kStep + n * 4, kStep);
      if (kSums) sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
    }
    if (kSums) {
      auto* const total = reinterpret_cast<__m256i*>(weight_sums + n);
      _mm256_storeu_si256(total, _mm256_add_epi32(_mm256_loadu_si256(total), sums));
    }
  }
}

template <int kWide>
void pack_weight(const int8_t* weight, int64_t stride, int64_t count, int64_t depth, uint8_t* panel,
                 int32_t* weight_sums) {
  if (weight_sums) {
    return pack_panel<kWide, true>(weight, stride, count, depth, panel, weight_sums);
  }
  pack_panel<kWide, false>(weight, stride, count, depth, panel, weight_sums);
}

// Multiplies the elements at .. at + 15 of kCount input rows with 16 elements of kWide weight rows,
// which start at `from`. If kSums, adds the latter to `pairs`.
template <int kCount, bool kSums, int kWide>
BARAQUANT_AVX2 inline __attribute__((always_inline)) void add_products(
    __m256i (&sums)[kCount + kSums][kWide], __m256i (&pairs)[kWide], const PackedRows& input,
    int64_t at, const int8_t* const (&rows)[kWide], int64_t from) {
#pragma GCC unroll 4
  for (int j = 0; j < kWide; ++j) {
    const __m256i w =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + from)));
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __m256i a = _mm256_load_si256(
          reinterpret_cast<const __m256i*>(input.data + i * input.stride + 2 * at));
      sums[i][j] = _mm256_add_epi32(sums[i][j], _mm256_madd_epi16(a, w));
    }
    if (kSums) pairs[j] = _mm256_add_epi16(pairs[j], w);
  }
}

// Moves `pairs` to the sums of the weight, which are the last row if kSums.
template <int kCount, bool kSums, int kWide>
BARAQUANT_AVX2 inline __attribute__((always_inline)) void add_pairs(
    __m256i (&sums)[kCount + kSums][kWide], __m256i (&pairs)[kWide]) {
  if constexpr (kSums) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      sums[kCount][j] = _mm256_add_epi32(sums[kCount][j], _mm256_madd_epi16(pairs[j], ones));
      pairs[j] = _mm256_setzero_si256();
    }
  }
}

constexpr int kPass = 4;  // the most rows of the input in dots()

// Rows of the weight beside so many of the input.
constexpr int wide(int64_t rows) { return rows == 1 ? 4 : 2; }

// Multiplies kCount rows of the input with some of the weight, and sums these if kSums.
template <int kCount, bool kSums>
BARAQUANT_AVX2 void dots(const Dots& d) {
  constexpr int kWide = wide(kCount);
  const int64_t k = d.k;
  Lines next = d.next;
  const int8_t* rows[kWide];
  for (int j = 0; j < kWide; ++j) rows[j] = d.row(j);
  __m256i sums[kCount + kSums][kWide] = {};  // the last row has the sums of the weight
  __m256i pairs[kWide] = {};                 // of at most four numbers each, so 16 bits hold them
  int64_t at = 0;
  for (; at + 64 <= k; at += 64) {
    next.fetch();
#pragma GCC unroll 4
    for (int step = 0; step < 64; step += 16) {
      add_products<kCount, kSums>(sums, pairs, d.input, at + step, rows, at + step);
    }
    add_pairs<kCount, kSums>(sums, pairs);
  }
  for (; at + 16 <= k; at += 16) add_products<kCount, kSums>(sums, pairs, d.input, at, rows, at);
  if (at < k) {
    int8_t last[kWide][16] = {};
    for (int j = 0; j < kWide; ++j) {
      std::memcpy(last[j], rows[j] + at, static_cast<size_t>(k - at));
      rows[j] = last[j];
    }
    add_products<kCount, kSums>(sums, pairs, d.input, at, rows, 0);
  }
  add_pairs<kCount, kSums>(sums, pairs);
#pragma GCC unroll 4
  for (int j = 0; j < kWide; ++j) {
    if (j >= d.count) break;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) d.sums.data[i * d.sums.stride + j] = sum_of_lanes(sums[i][j]);
    if (kSums) d.weight_sums[j] = sum_of_lanes(sums[kCount][j]);
  }
}

inline constexpr auto kFirst = for_each_count<kPass>([]<int rows> { return &dots<rows, true>; });
inline constexpr auto kDots = for_each_count<kPass>([]<int rows> { return &dots<rows, false>; });
inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel::Streams kStreams{kFirst, kDots, wide(1), wide(2)};
inline constexpr CpuKernel kKernel{"int8_mm_avx2",         kColumns, 2, {},      &pack_wide,
                                   &pack_weight<kColumns>, kTiles,   4, kStreams};

}  // namespace baraquant::int8_mm::avx2
#endif
