// SPDX-License-Identifier: BSD-3-Clause
// 16 numbers of float32 as the registers of an instruction set hold them. A product and a sum are one
// operation with one rounding, so every set gives the same bits.
//
// kernels.cpp compiles its loops once for each set, in a namespace of its own. The compiler inlines
// an instruction only into functions that are compiled for its set, hence the pragmas there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "elementwise/math.h"
#include "machine/float_types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace baraquant::weight_only {

constexpr int kLanes = 16;

namespace portable {

struct Lanes {
  float x[kLanes] = {};

  static Lanes widened(const int8_t* q) {
    Lanes result;
    for (int i = 0; i < kLanes; ++i) result.x[i] = q[i];
    return result;
  }
  void dequantize(float scale, float zero_point) {
    for (float& number : x) number = affine::dequantized_value(number, scale, zero_point);
  }
  void round_to_bfloat16() {
    for (float& number : x) number = to_compute<float>(from_compute<BFloat16>(number));
  }
  void add_products(const float* values, const Lanes& w) {
    for (int i = 0; i < kLanes; ++i) x[i] = std::fma(values[i], w.x[i], x[i]);
  }
  void store(float* to) const { memcpy(to, x, sizeof(x)); }
  void store(BFloat16* to) const {
    for (int i = 0; i < kLanes; ++i) to[i] = from_compute<BFloat16>(x[i]);
  }
};

}  // namespace portable

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {

struct Lanes {
  __m256 x[2] = {};

  static Lanes widened(const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  void dequantize(float scale, float zero_point) {
    for (__m256& part : x) {
      part = _mm256_mul_ps(_mm256_sub_ps(part, _mm256_set1_ps(zero_point)), _mm256_set1_ps(scale));
    }
  }
  // As float_to_bfloat16().
  void round_to_bfloat16() {
    for (__m256& part : x) {
      const __m256i bits = _mm256_castps_si256(part);
      const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i nearest =
          _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last);
      const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
      const __m256 is_nan = _mm256_cmp_ps(part, part, _CMP_UNORD_Q);
      const __m256 kept =
          _mm256_blendv_ps(_mm256_castsi256_ps(nearest), _mm256_castsi256_ps(nan), is_nan);
      part = _mm256_and_ps(kept, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
    }
  }
  void add_products(const float* values, const Lanes& w) {
    for (int i = 0; i < 2; ++i) {
      x[i] = _mm256_fmadd_ps(_mm256_loadu_ps(values + 8 * i), w.x[i], x[i]);
    }
  }
  void store(float* to) const {
    for (int i = 0; i < 2; ++i) _mm256_storeu_ps(to + 8 * i, x[i]);
  }
  // Of numbers that are rounded already.
  void store(BFloat16* to) const {
    const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(x[0]), 16);
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(x[1]), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  }
};

}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace avx512 {

constexpr __mmask16 kAll = 0xffff;  // NB: without a mask, GCC 12 warns of its own headers

struct Lanes {
  __m512 x = {};

  static Lanes widened(const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return {_mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepi8_epi32(kAll, bytes))};
  }
  void dequantize(float scale, float zero_point) {
    x = _mm512_mul_ps(_mm512_sub_ps(x, _mm512_set1_ps(zero_point)), _mm512_set1_ps(scale));
  }
  // As float_to_bfloat16().
  void round_to_bfloat16() {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last =
        _mm512_and_si512(_mm512_maskz_srli_epi32(kAll, bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x400000));
    x = _mm512_castsi512_ps(_mm512_and_si512(kept, _mm512_set1_epi32(-0x10000)));
  }
  void add_products(const float* values, const Lanes& w) {
    x = _mm512_fmadd_ps(_mm512_loadu_ps(values), w.x, x);
  }
  void store(float* to) const { _mm512_storeu_ps(to, x); }
  // Of numbers that are rounded already.
  void store(BFloat16* to) const {
    const __m512i bits = _mm512_maskz_srli_epi32(kAll, _mm512_castps_si512(x), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(kAll, bits));
  }
};

}  // namespace avx512
#pragma GCC pop_options
#elif defined(__aarch64__)
namespace neon {

struct Lanes {
  float32x4_t x[4] = {};

  static Lanes widened(const int8_t* q) {
    const int8x16_t bytes = vld1q_s8(q);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
  }
  void dequantize(float scale, float zero_point) {
    for (float32x4_t& part : x) part = vmulq_n_f32(vsubq_f32(part, vdupq_n_f32(zero_point)), scale);
  }
  // As float_to_bfloat16().
  void round_to_bfloat16() {
    for (float32x4_t& part : x) {
      const uint32x4_t bits = vreinterpretq_u32_f32(part);
      const uint32x4_t last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
      const uint32x4_t nearest = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), last);
      const uint32x4_t nan = vorrq_u32(bits, vdupq_n_u32(0x400000));
      const uint32x4_t kept = vbslq_u32(vceqq_f32(part, part), nearest, nan);
      part = vreinterpretq_f32_u32(vandq_u32(kept, vdupq_n_u32(0xffff0000)));
    }
  }
  void add_products(const float* values, const Lanes& w) {
    for (int i = 0; i < 4; ++i) x[i] = vfmaq_f32(x[i], vld1q_f32(values + 4 * i), w.x[i]);
  }
  void store(float* to) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, x[i]);
  }
  // Of numbers that are rounded already.
  void store(BFloat16* to) const {
    for (int i = 0; i < 4; ++i) {
      const uint16x4_t bits = vshrn_n_u32(vreinterpretq_u32_f32(x[i]), 16);
      vst1_u16(reinterpret_cast<uint16_t*>(to + 4 * i), bits);
    }
  }
};

}  // namespace neon
#endif

}  // namespace baraquant::weight_only
