// SPDX-License-Identifier: BSD-3-Clause
// Rows of 16-bit floating numbers to and from float on the CPU, for loops that compute in float. The
// bits are those of float_types.h, but for the bits of a NaN.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>

#include "machine/cpu_isa.h"
#include "machine/float_types.h"

namespace baraquant {

#if defined(__x86_64__)
constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// These convert as many as fill vectors, and return how many.
BARAQUANT_AVX2 inline int64_t fill_avx2(const Float16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(x));
  }
  return i;
}
BARAQUANT_AVX2 inline int64_t fill_avx2(const float* from, int64_t count, Float16* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i x = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), kNearest);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), x);
  }
  return i;
}
BARAQUANT_AVX512 inline int64_t fill_avx512(const Float16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, x));
  }
  return i;
}
BARAQUANT_AVX512 inline int64_t fill_avx512(const float* from, int64_t count, Float16* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i x = _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i), kNearest);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), x);
  }
  return i;
}
#elif defined(__aarch64__)
// As above, with what every ARM of 64 bits has.
inline int64_t fill_neon(const Float16* from, int64_t count, float* to) {
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    const uint16x8_t bits = vld1q_u16(reinterpret_cast<const uint16_t*>(from + i));
    const float16x8_t x = vreinterpretq_f16_u16(bits);
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(x)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(x));
  }
  return whole;
}
inline int64_t fill_neon(const float* from, int64_t count, Float16* to) {
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    const uint16x8_t bits = vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(from + i + 4)));
    vst1q_u16(reinterpret_cast<uint16_t*>(to + i), bits);
  }
  return whole;
}
#endif

// Converts a row: to float, or from it.
template <typename From, typename To>
void convert_row(CpuIsa isa, const From* from, int64_t count, To* to) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (isa >= CpuIsa::kAvx512) {
    done = fill_avx512(from, count, to);
  } else if (isa >= CpuIsa::kAvx2) {
    done = fill_avx2(from, count, to);
  }
#elif defined(__aarch64__)
  done = fill_neon(from, count, to);
#endif
  for (int64_t i = done; i < count; ++i) to[i] = from_compute<To>(to_compute<float>(from[i]));
}

template <typename From, typename To>
  requires std::is_same_v<From, BFloat16> || std::is_same_v<To, BFloat16>
void convert_row(CpuIsa isa, const From* from, int64_t count, To* to) {
  run_on_isa(isa, [&]() __attribute__((always_inline)) {
    const From* __restrict const x = from;
    To* __restrict const y = to;
    for (int64_t i = 0; i < count; ++i) y[i] = from_compute<To>(to_compute<float>(x[i]));
  });
}

}  // namespace baraquant
