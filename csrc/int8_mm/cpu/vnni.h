// SPDX-License-Identifier: BSD-3-Clause
// AVX-512 VNNI: vpdpbusd adds four products of an unsigned and a signed byte to an int32, without
// saturation. The input is the unsigned operand (an int8 + 128), the weight the signed one.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "int8_mm/cpu/avx2.h"
#include "int8_mm/cpu/avx512.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm::vnni {

// Registers: 24 for sums, 2 for the weight and 1 for the input: 27 of 32. The tile is narrow and
// high, so that a panel of a long depth stays in the L1 cache.
using avx512::kColumns, avx512::kLanes, avx512::kRows, avx512::kVectors;

template <int kCount>
BARAQUANT_AVX512_VNNI void tile(const PackedRows& input, const uint8_t* panel, int64_t words,
                                const Sums& out, bool add, const Ahead& ahead) {
  __m512i sums[kCount][kVectors];
  load_sums(sums, out, add);
  const int64_t stride = input.stride;
  const uint8_t* rows[3] = {input.data, input.data + 4 * stride, input.data + 8 * stride};
  for (int64_t g = 0; g < words; ++g) {
    const __m512i w[kVectors] = {_mm512_loadu_si512(panel), _mm512_loadu_si512(panel + 64)};
    panel += kVectors * 64;
    if (ahead.rows) _mm_prefetch(ahead.at<16, 16>(g), _MM_HINT_T1);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      int32_t word;
      std::memcpy(&word, rows[i / 4] + i % 4 * stride, 4);
      const __m512i a = _mm512_set1_epi32(word);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], a, w[v]);
    }
    for (const uint8_t*& row : rows) row += 4;
  }
  store_sums(sums, out);
}

// Turns 16 rows of 64 bytes into 16 vectors: vector g has the bytes 4g .. 4g + 3 of each row.
BARAQUANT_AVX512_VNNI inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // transpose four rows at a time, in each lane of 128 bits
    const __m512i a = _mm512_maskz_unpacklo_epi32(-1, r[i], r[i + 1]);
    const __m512i b = _mm512_maskz_unpackhi_epi32(-1, r[i], r[i + 1]);
    const __m512i c = _mm512_maskz_unpacklo_epi32(-1, r[i + 2], r[i + 3]);
    const __m512i d = _mm512_maskz_unpackhi_epi32(-1, r[i + 2], r[i + 3]);
    t[i] = _mm512_maskz_unpacklo_epi64(-1, a, c);
    t[i + 1] = _mm512_maskz_unpackhi_epi64(-1, a, c);
    t[i + 2] = _mm512_maskz_unpacklo_epi64(-1, b, d);
    t[i + 3] = _mm512_maskz_unpackhi_epi64(-1, b, d);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // then gather the lanes of the four groups of rows
    const __m512i a = _mm512_maskz_shuffle_i32x4(-1, t[j], t[j + 4], 0x44);
    const __m512i b = _mm512_maskz_shuffle_i32x4(-1, t[j], t[j + 4], 0xee);
    const __m512i c = _mm512_maskz_shuffle_i32x4(-1, t[j + 8], t[j + 12], 0x44);
    const __m512i d = _mm512_maskz_shuffle_i32x4(-1, t[j + 8], t[j + 12], 0xee);
    r[j] = _mm512_maskz_shuffle_i32x4(-1, a, c, 0x88);
    r[j + 4] = _mm512_maskz_shuffle_i32x4(-1, a, c, 0xdd);
    r[j + 8] = _mm512_maskz_shuffle_i32x4(-1, b, d, 0x88);
    r[j + 12] = _mm512_maskz_shuffle_i32x4(-1, b, d, 0xdd);
  }
}

BARAQUANT_AVX512_VNNI inline __mmask64 first_bytes(int64_t count) {
  return count >= 64 ? ~__mmask64(0) : (__mmask64(1) << count) - 1;
}

BARAQUANT_AVX512_VNNI inline void pack_weight(const int8_t* weight, int64_t stride, int64_t count,
                                              int64_t depth, uint8_t* panel, int32_t* weight_sums) {
  const __m512i ones = _mm512_set1_epi8(1);
  for (int v = 0; v < kVectors; ++v) {
    const int8_t* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      rows[i] = weight + std::min<int64_t>(v * kLanes + i, count - 1) * stride;
    }
    __m512i sums = _mm512_loadu_si512(weight_sums + v * kLanes);
    for (int64_t k = 0; k < depth; k += 64) {
      const __mmask64 mask = first_bytes(depth - k);
      __m512i words[16];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) words[i] = _mm512_maskz_loadu_epi8(mask, rows[i] + k);
      transpose(words);
      uint8_t* const to = panel + k * kColumns + v * 64;
#pragma GCC unroll 16
      for (int g = 0; g < 16; ++g) {
        sums = _mm512_dpbusd_epi32(sums, ones, words[g]);
        _mm512_store_si512(to + g * kColumns * 4, words[g]);
      }
    }
    _mm512_storeu_si512(weight_sums + v * kLanes, sums);
  }
}

// As _mm512_dpbusd_epi32() and _mm512_setzero_si512(). NB: around the plain intrinsics GCC 12 copies
// every sum from one register to another in each step of dots(), which then takes twice as long.
BARAQUANT_AVX512_VNNI __attribute__((always_inline)) inline __m512i add_products(__m512i sums,
                                                                                 __m512i a,
                                                                                 __m512i w) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(w));
  return sums;
}
BARAQUANT_AVX512_VNNI __attribute__((always_inline)) inline __m512i zero() {
  __m512i x = _mm512_setzero_si512();
  asm("" : "+v"(x));
  return x;
}

// The sums over the lanes of each of four vectors.
BARAQUANT_AVX512_VNNI __attribute__((always_inline)) inline __m128i sums_of(const __m512i (&x)[4]) {
  __m512i pairs[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    pairs[i] = _mm512_add_epi32(_mm512_maskz_unpacklo_epi32(-1, x[2 * i], x[2 * i + 1]),
                                _mm512_maskz_unpackhi_epi32(-1, x[2 * i], x[2 * i + 1]));
  }
  const __m512i quads = _mm512_add_epi32(_mm512_maskz_unpacklo_epi64(-1, pairs[0], pairs[1]),
                                         _mm512_maskz_unpackhi_epi64(-1, pairs[0], pairs[1]));
  const __m256i half = _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, quads, 0),
                                        _mm512_maskz_extracti64x4_epi64(0xf, quads, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Registers: 24 for sums of the input and 4 of the weight, one of the weight, one of the input and
// one of ones: 31 of 32.
constexpr int kStreamed = 4, kPass = 6;

// Multiplies kCount rows of the input with kStreamed of the weight, and sums these if kSums.
template <int kCount, bool kSums>
BARAQUANT_AVX512_VNNI void dots(const Dots& d) {
  const int64_t k = d.k, stride = d.input.stride;
  const uint8_t* const input = d.input.data;
  Lines next = d.next;
  const int8_t* const rows[kStreamed] = {d.row(0), d.row(1), d.row(2), d.row(3)};
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums[kCount + kSums][kStreamed];  // the last row has the sums of the weight
#pragma GCC unroll 7
  for (int i = 0; i < kCount + kSums; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kStreamed; ++j) sums[i][j] = zero();
  }
  for (int64_t at = 0; at < k; at += 64) {
    next.fetch();
    const __mmask64 mask = first_bytes(k - at);
    __m512i a[kCount];
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) a[i] = _mm512_load_si512(input + i * stride + at);
#pragma GCC unroll 4
    for (int j = 0; j < kStreamed; ++j) {
      const __m512i w = _mm512_maskz_loadu_epi8(mask, rows[j] + at);
#pragma GCC unroll 6
      for (int i = 0; i < kCount; ++i) sums[i][j] = add_products(sums[i][j], a[i], w);
      if (kSums) sums[kCount][j] = add_products(sums[kCount][j], ones, w);
    }
  }
  const __mmask8 mask = static_cast<__mmask8>((1 << std::min<int64_t>(d.count, kStreamed)) - 1);
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    _mm_mask_storeu_epi32(d.sums.data + i * d.sums.stride, mask, sums_of(sums[i]));
  }
  if (kSums) _mm_mask_storeu_epi32(d.weight_sums, mask, sums_of(sums[kCount]));
}

inline constexpr auto kFirst = for_each_count<kPass>([]<int rows> { return &dots<rows, true>; });
inline constexpr auto kDots = for_each_count<kPass>([]<int rows> { return &dots<rows, false>; });
inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel::Streams kStreams{kFirst, kDots, kStreamed, kStreamed};
inline constexpr CpuKernel kKernel{"int8_mm_vnni",    kColumns,     4,      {.of_int8 = 128},
                                   &pack_bytes<true>, &pack_weight, kTiles, 16,
                                   kStreams};

}  // namespace baraquant::int8_mm::vnni
#endif
