// SPDX-License-Identifier: BSD-3-Clause
// Sums over the lanes of a vector, for the integer products on the CPU.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

#include "machine/cpu_isa.h"

namespace baraquant {

BARAQUANT_AVX2 inline int32_t sum_of_lanes(__m256i x) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

}  // namespace baraquant
#endif
