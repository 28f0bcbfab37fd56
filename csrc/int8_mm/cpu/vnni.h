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
                                const Sums& out, bool add) {
  __m512i sums[kCount][kVectors];
  avx512::load_sums(sums, out, add);
  const int64_t stride = input.stride;
  const uint8_t* rows[3] = {input.data, input.data + 4 * stride, input.data + 8 * stride};
  for (int64_t g = 0; g < words; ++g) {
    const __m512i w[kVectors] = {_mm512_loadu_si512(panel), _mm512_loadu_si512(panel + 64)};
    panel += kVectors * 64;
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      int32_t word;
      std::memcpy(&word, rows[i / 4] + i % 4 * stride, 4);
      const __m512i a = _mm512_set1_epi32(word);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbusd_epi32(sums[i][v], a, w[v]);
    }
    for (const uint8_t*& row : rows) row += 4;
  }
  avx512::store_sums(sums, out);
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

BARAQUANT_AVX512_VNNI inline int32_t sum_of(__m512i x) {
  const __m256i high = _mm512_maskz_extracti64x4_epi64(0xf, x, 1);
  return sum_of_lanes(_mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, x, 0), high));
}

// Multiplies kCount input rows with kWide weight rows, and prefetches the weight rows after them.
template <int kCount, int kWide>
BARAQUANT_AVX512_VNNI void dots(const PackedRows& input, const int8_t* weight, int64_t k,
                                const Sums& out, int32_t* weight_sums) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums[kCount + 1][kWide] = {};  // the last row has the sums of the weight alone
  for (int64_t at = 0; at < k; at += 64) {
    const __mmask64 mask = first_bytes(k - at);
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) {
      _mm_prefetch(weight + (j + kWide) * k + at, _MM_HINT_T0);
      const __m512i w = _mm512_maskz_loadu_epi8(mask, weight + j * k + at);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) {
        const __m512i a = _mm512_load_si512(input.data + i * input.stride + at);
        sums[i][j] = _mm512_dpbusd_epi32(sums[i][j], a, w);
      }
      sums[kCount][j] = _mm512_dpbusd_epi32(sums[kCount][j], ones, w);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kWide; ++j) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) out.data[i * out.stride + j] = sum_of(sums[i][j]);
    weight_sums[j] = sum_of(sums[kCount][j]);
  }
}

template <int kCount>
void stream(const PackedRows& input, const int8_t* weight, int64_t count, int64_t k,
            const Sums& sums, int32_t* weight_sums) {
  int64_t n = 0;
  for (; n + 4 <= count; n += 4) {
    dots<kCount, 4>(input, weight + n * k, k, {sums.data + n, sums.stride}, weight_sums + n);
  }
  for (; n < count; ++n) {
    dots<kCount, 1>(input, weight + n * k, k, {sums.data + n, sums.stride}, weight_sums + n);
  }
}

inline constexpr auto kTiles =
    for_each_count<CpuKernel::Tile, kRows>([]<int kCount> { return &tile<kCount>; });
inline constexpr auto kStreams =
    for_each_count<CpuKernel::Stream, 4>([]<int kCount> { return &stream<kCount>; });
inline constexpr CpuKernel kKernel{"int8_mm_vnni", kColumns,     4,      128,
                                   &pack_bytes,    &pack_weight, kTiles, kStreams};

}  // namespace baraquant::int8_mm::vnni
#endif
