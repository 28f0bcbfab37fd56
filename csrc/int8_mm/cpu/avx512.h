// SPDX-License-Identifier: BSD-3-Clause
// AVX-512 without VNNI: 16-bit operands as on AVX2, with the packing and streaming code of avx2.h.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "int8_mm/cpu/avx2.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm::avx512 {

// Registers: 24 for sums, 2 for the weight, 1 for the input and 1 for a product: 28 of 32.
constexpr int kRows = 12, kVectors = 2, kLanes = 16, kColumns = kVectors * kLanes;

// Starts a tile's sums from `out` or from 0. NB: always inlined, so that they stay in registers.
template <int kCount>
BARAQUANT_AVX512 __attribute__((always_inline)) inline void load_sums(
    __m512i (&sums)[kCount][kVectors], const Sums& out, bool add) {
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] =
          add ? _mm512_loadu_si512(out.data + i * out.stride + v * kLanes) : _mm512_setzero_si512();
    }
  }
}

template <int kCount>
BARAQUANT_AVX512 __attribute__((always_inline)) inline void store_sums(
    const __m512i (&sums)[kCount][kVectors], const Sums& out) {
#pragma GCC unroll 12
  for (int i = 0; i < kCount; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_si512(out.data + i * out.stride + v * kLanes, sums[i][v]);
    }
  }
}

template <int kCount>
BARAQUANT_AVX512 void tile(const PackedRows& input, const uint8_t* panel, int64_t words,
                           const Sums& out, bool add, const Ahead& ahead) {
  __m512i sums[kCount][kVectors];
  load_sums(sums, out, add);
  const int64_t stride = input.stride;
  const uint8_t* rows[3] = {input.data, input.data + 4 * stride, input.data + 8 * stride};
  for (int64_t g = 0; g < words; ++g) {
    const __m512i w0 = _mm512_load_si512(panel), w1 = _mm512_load_si512(panel + 64);
    panel += kVectors * 64;
    if (ahead.rows) _mm_prefetch(ahead.at<32, kColumns>(g), _MM_HINT_T1);
#pragma GCC unroll 12
    for (int i = 0; i < kCount; ++i) {
      int32_t word;
      std::memcpy(&word, rows[i / 4] + i % 4 * stride, 4);
      const __m512i a = _mm512_set1_epi32(word);
      sums[i][0] = _mm512_add_epi32(sums[i][0], _mm512_madd_epi16(a, w0));
      sums[i][1] = _mm512_add_epi32(sums[i][1], _mm512_madd_epi16(a, w1));
    }
    for (const uint8_t*& row : rows) row += 4;
  }
  store_sums(sums, out);
}

inline constexpr auto kTiles =
    for_each_count<CpuKernel::Tile, kRows>([]<int kCount> { return &tile<kCount>; });
inline constexpr CpuKernel kKernel{
    "int8_mm_avx512", kColumns, 2, {}, &pack_wide, &avx2::pack_weight<kColumns>, kTiles, 4,
    &avx2::stream};

}  // namespace baraquant::int8_mm::avx512
#endif
