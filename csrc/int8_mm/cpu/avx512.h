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

inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel kKernel{
    "int8_mm_avx512", kColumns, 2, {}, &pack_wide, &avx2::pack_weight<kColumns>, kTiles, 4,
    avx2::kStreams};

}  // namespace baraquant::int8_mm::avx512
#endif
