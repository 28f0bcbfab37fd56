// SPDX-License-Identifier: BSD-3-Clause
// AVX-VNNI, for machines without AVX-512: vpdpbusd as in vnni.h, with vectors of 256 bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "int8_mm/cpu/avx2.h"
#include "machine/cpu_isa.h"
#include "machine/lanes.h"

namespace baraquant::int8_mm::avx_vnni {

// Registers: 12 for sums, 2 for the weight and 1 for the input: 15 of 16.
using avx2::kColumns, avx2::kLanes, avx2::kRows, avx2::kVectors;

// As _mm256_dpbusd_avx_epi32() and _mm256_setzero_si256(), for the reason that vnni.h gives.
BARAQUANT_AVX_VNNI __attribute__((always_inline)) inline __m256i add_products(__m256i sums,
                                                                              __m256i a,
                                                                              __m256i w) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(a), "x"(w));
  return sums;
}
BARAQUANT_AVX_VNNI __attribute__((always_inline)) inline __m256i zero() {
  __m256i x = _mm256_setzero_si256();
  asm("" : "+x"(x));
  return x;
}

template <int kCount>
BARAQUANT_AVX_VNNI void tile(const PackedRows& input, const uint8_t* panel, int64_t words,
                             const Sums& out, bool add, const Ahead& ahead) {
  __m256i sums[kCount][kVectors];
  load_sums(sums, out, add);
  const int64_t stride = input.stride;
  const uint8_t* rows[2] = {input.data, input.data + 3 * stride};
  const __m256i* vectors = reinterpret_cast<const __m256i*>(panel);
  for (int64_t g = 0; g < words; ++g) {
    const __m256i w[kVectors] = {_mm256_load_si256(vectors), _mm256_load_si256(vectors + 1)};
    vectors += kVectors;
    if (ahead.rows) _mm_prefetch(ahead.at<16, kColumns>(g), _MM_HINT_T1);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      int32_t word;
      std::memcpy(&word, rows[i / 3] + i % 3 * stride, 4);
      const __m256i a = _mm256_set1_epi32(word);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = add_products(sums[i][v], a, w[v]);
    }
    for (const uint8_t*& row : rows) row += 4;
  }
  store_sums(sums, out);
}

// Turns 8 rows of 32 bytes into 8 vectors: vector g has the bytes 4g .. 4g + 3 of each row.
BARAQUANT_AVX_VNNI inline void transpose(__m256i (&r)[8]) {
  __m256i t[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // transpose four rows at a time, in each lane of 128 bits
    const __m256i a = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    const __m256i b = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    const __m256i c = _mm256_unpacklo_epi32(r[i + 2], r[i + 3]);
    const __m256i d = _mm256_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm256_unpacklo_epi64(a, c);
    t[i + 1] = _mm256_unpackhi_epi64(a, c);
    t[i + 2] = _mm256_unpacklo_epi64(b, d);
    t[i + 3] = _mm256_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // then gather the lanes of the two groups of rows
    r[j] = _mm256_permute2x128_si256(t[j], t[j + 4], 0x20);
    r[j + 4] = _mm256_permute2x128_si256(t[j], t[j + 4], 0x31);
  }
}

// The elements k .. k + 31 of a row of `depth` elements; zeros after its end.
BARAQUANT_AVX_VNNI inline __m256i load(const int8_t* row, int64_t k, int64_t depth) {
  if (k + 32 <= depth) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + k));
  alignas(32) int8_t last[32] = {};
  if (k < depth) std::memcpy(last, row + k, static_cast<size_t>(depth - k));
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(last));
}

BARAQUANT_AVX_VNNI inline void pack_weight(const int8_t* weight, int64_t stride, int64_t count,
                                           int64_t depth, uint8_t* panel, int32_t* weight_sums) {
  const __m256i ones = _mm256_set1_epi8(1);
  for (int v = 0; v < kVectors; ++v) {
    const int8_t* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      rows[i] = weight + std::min<int64_t>(v * kLanes + i, count - 1) * stride;
    }
    auto* const total = reinterpret_cast<__m256i*>(weight_sums + v * kLanes);
    __m256i sums = _mm256_loadu_si256(total);
    for (int64_t k = 0; k < depth; k += 32) {
      __m256i words[8];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; ++i) words[i] = load(rows[i], k, depth);
      transpose(words);
      uint8_t* const to = panel + k * kColumns + v * 32;
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        sums = add_products(sums, ones, words[g]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + g * kColumns * 4), words[g]);
      }
    }
    _mm256_storeu_si256(total, sums);
  }
}

// Registers: at most 10 for sums of the input and 2 of the weight, one of the weight, one of the
// input and one of ones: 15 of 16.
constexpr int kPass = 5;

// Multiplies the elements at .. at + 31 of kCount input rows with 32 elements of kWide weight rows,
// which start at `from`. If kSums, the last row of `sums` adds those of the weight alone.
template <int kCount, bool kSums, int kWide>
BARAQUANT_AVX_VNNI __attribute__((always_inline)) inline void multiply(
    __m256i (&sums)[kCount + kSums][kWide], const PackedRows& input, int64_t at,
    const int8_t* const (&rows)[kWide], int64_t from) {
  const __m256i ones = _mm256_set1_epi8(1);
#pragma GCC unroll 4
  for (int j = 0; j < kWide; ++j) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[j] + from));
#pragma GCC unroll 5
    for (int i = 0; i < kCount; ++i) {
      const auto* const a = reinterpret_cast<const __m256i*>(input.data + i * input.stride + at);
      sums[i][j] = add_products(sums[i][j], _mm256_load_si256(a), w);
    }
    if (kSums) sums[kCount][j] = add_products(sums[kCount][j], ones, w);
  }
}

// Multiplies kCount rows of the input with some of the weight, and sums these if kSums.
template <int kCount, bool kSums>
BARAQUANT_AVX_VNNI void dots(const Dots& d) {
  constexpr int kWide = avx2::wide(kCount);
  const int64_t k = d.k;
  Lines next = d.next;
  const int8_t* rows[kWide];
  for (int j = 0; j < kWide; ++j) rows[j] = d.row(j);
  __m256i sums[kCount + kSums][kWide];
#pragma GCC unroll 6
  for (int i = 0; i < kCount + kSums; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) sums[i][j] = zero();
  }
  int64_t at = 0;
  for (; at + 64 <= k; at += 64) {
    next.fetch();
    multiply<kCount, kSums>(sums, d.input, at, rows, at);
    multiply<kCount, kSums>(sums, d.input, at + 32, rows, at + 32);
  }
  for (; at < k; at += 32) {
    alignas(32) int8_t last[kWide][32] = {};
    const int8_t* lasts[kWide];
    for (int j = 0; j < kWide; ++j) {
      std::memcpy(last[j], rows[j] + at, static_cast<size_t>(std::min<int64_t>(32, k - at)));
      lasts[j] = last[j];
    }
    multiply<kCount, kSums>(sums, d.input, at, lasts, 0);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kWide; ++j) {
    if (j >= d.count) break;
#pragma GCC unroll 5
    for (int i = 0; i < kCount; ++i) d.sums.data[i * d.sums.stride + j] = sum_of_lanes(sums[i][j]);
    if (kSums) d.weight_sums[j] = sum_of_lanes(sums[kCount][j]);
  }
}

inline constexpr auto kFirst = for_each_count<kPass>([]<int rows> { return &dots<rows, true>; });
inline constexpr auto kDots = for_each_count<kPass>([]<int rows> { return &dots<rows, false>; });
inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel::Streams kStreams{kFirst, kDots, avx2::wide(1), avx2::wide(2)};
inline constexpr CpuKernel kKernel{
    "int8_mm_avx_vnni", kColumns, 4,  {.of_int8 = 128}, &pack_bytes<true>,
    &pack_weight,       kTiles,   16, kStreams};

}  // namespace baraquant::int8_mm::avx_vnni
#endif
