// SPDX-License-Identifier: BSD-3-Clause
// Multiplies a few rows of integers with packed rows as they lie, without torch. The product
// (int8_mm/cpu) calls it where this is faster than expanding the weight. For each group
//   sum of x (u - z) f = f * (sum of x u) - z f * (sum of x)
// and the sums of x are known. The sum of a packed row itself, which zero points of the input need, is
// its product with a row of ones. Everything is exact modulo 2^32, and so is the result, which int32
// holds.
//
// Numbers u in [0, 15] take bytes without a sign, so a byte instruction multiplies them with x. Where
// (u - z) f might not fit into int8, what a product defines is the sum with the wrapped number
// (math.h): such rows are left to the caller.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>

#include "int4/math.h"
#include "machine/cpu_isa.h"
#include "machine/lanes.h"

namespace baraquant::int4 {

constexpr int64_t kDotStep = 32;  // elements that a vector holds
constexpr int64_t kDotRows = 4;   // the most rows of the input, without the row of ones

// Rows of the input in the order in which dot_rows reads them. Of each 32 elements the 16 with even
// numbers come first, then those with odd ones.
struct DotInput {
  const uint8_t* values;      // [count, columns], of int8_t or of uint8_t
  const int32_t* group_sums;  // [count, groups]
  int64_t count, columns, groups;
  bool is_unsigned;
  bool has_ones;  // whether the last of the `count` rows are ones
};

inline bool can_dot(CpuIsa isa, const Packed& packed, int64_t count) {
  return count <= kDotRows && isa != CpuIsa::kDefault && packed.values && packed.columns > 0 &&
         packed.columns % kDotStep == 0 && packed.group_size % kDotStep == 0;
}

// Writes a row of the input in that order, and the sums of its groups.
template <typename T>
void arrange(const T* from, const Packed& packed, uint8_t* values, int32_t* group_sums) {
  for (int64_t k = 0; k < packed.columns; k += kDotStep) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kDotStep / 2; ++i) {
      const T even = from[k + 2 * i], odd = from[k + 2 * i + 1];
      values[k + i] = static_cast<uint8_t>(even);
      values[k + kDotStep / 2 + i] = static_cast<uint8_t>(odd);
      sum += even + odd;
    }
    int32_t& group = group_sums[k / packed.group_size];
    group = k % packed.group_size == 0 ? sum : group + sum;
  }
}

#if defined(__x86_64__) || defined(__aarch64__)
// Whether no (u - z) f of a row can leave int8, whatever u is.
BARAQUANT_AVX2 inline bool fits_int8(const Packed& packed, int64_t row) {
  const int64_t groups = packed.groups();
  const uint8_t* __restrict const factor = packed.factor + row * groups;
  int wrong = 0;
  if (!packed.zero_point) {
    for (int64_t g = 0; g < groups; ++g) wrong |= factor[g] > kMaxFactor;
    return wrong == 0;
  }
  const uint8_t* __restrict const zero_point = packed.zero_point + row * groups;
  for (int64_t g = 0; g < groups; ++g) {
    const int f = factor[g], z = zero_point[g];
    wrong |= (z * f > 128) | ((kLargest - z) * f > 127) | (f > 128);
  }
  return wrong == 0;
}

#if defined(__x86_64__)
// sums[i] = row i of the input times a packed row, without its zero points.
template <int kCount, bool kUnsigned>
BARAQUANT_AVX2 void dot_row(const Packed& packed, int64_t row, const DotInput& input,
                            uint32_t (&sums)[kCount]) {
  const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4), low = _mm256_set1_epi8(15);
  const uint8_t* const factor = packed.factor + row * input.groups;
  const uint8_t* from = packed.row(row);
  __m256i total[kCount] = {};
  int64_t k = 0;
  for (int64_t g = 0; g < input.groups; ++g) {
    const __m256i f = _mm256_set1_epi16(factor[g]);
    const int64_t rest = packed.columns - k;
    const int64_t end = k + (rest < packed.group_size ? rest : packed.group_size);
    for (; k < end; k += kDotStep, from += kDotStep / 2) {
      const __m256i bytes =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m256i u = _mm256_and_si256(_mm256_srlv_epi32(bytes, shifts), low);
#pragma GCC unroll 5
      for (int i = 0; i < kCount; ++i) {
        const __m256i x = _mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(input.values + i * input.columns + k));
        // At most 2 * 15 * 255, so 16 bits hold it.
        const __m256i products =
            kUnsigned ? _mm256_maddubs_epi16(x, u) : _mm256_maddubs_epi16(u, x);
        total[i] = _mm256_add_epi32(total[i], _mm256_madd_epi16(products, f));
      }
    }
  }
  for (int i = 0; i < kCount; ++i) sums[i] = static_cast<uint32_t>(sum_of_lanes(total[i]));
}
#else
// Adds the products of four bytes each. The numbers u are below 16, so any instruction reads them.
template <bool kUnsigned>
BARAQUANT_NEON_DOTPROD __attribute__((always_inline)) inline uint32x4_t add_products(
    uint32x4_t sums, uint8x16_t u, uint8x16_t x) {
  if constexpr (kUnsigned) return vdotq_u32(sums, u, x);
  return vreinterpretq_u32_s32(
      vdotq_s32(vreinterpretq_s32_u32(sums), vreinterpretq_s8_u8(u), vreinterpretq_s8_u8(x)));
}

// As above.
template <int kCount, bool kUnsigned>
BARAQUANT_NEON_DOTPROD void dot_row(const Packed& packed, int64_t row, const DotInput& input,
                                    uint32_t (&sums)[kCount]) {
  const uint8_t* const factor = packed.factor + row * input.groups;
  const uint8_t* from = packed.row(row);
  uint32x4_t total[kCount];
  for (int i = 0; i < kCount; ++i) total[i] = vdupq_n_u32(0);
  int64_t k = 0;
  for (int64_t g = 0; g < input.groups; ++g) {
    const int64_t rest = packed.columns - k;
    const int64_t end = k + (rest < packed.group_size ? rest : packed.group_size);
    uint32x4_t of_group[kCount];
    for (int i = 0; i < kCount; ++i) of_group[i] = vdupq_n_u32(0);
    for (; k < end; k += kDotStep, from += kDotStep / 2) {
      const uint8x16_t bytes = vld1q_u8(from);
      const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
#pragma GCC unroll 5
      for (int i = 0; i < kCount; ++i) {
        const uint8_t* const x = input.values + i * input.columns + k;
        of_group[i] = add_products<kUnsigned>(of_group[i], even, vld1q_u8(x));
        of_group[i] = add_products<kUnsigned>(of_group[i], odd, vld1q_u8(x + kDotStep / 2));
      }
    }
    for (int i = 0; i < kCount; ++i) total[i] = vmlaq_n_u32(total[i], of_group[i], factor[g]);
  }
  for (int i = 0; i < kCount; ++i) sums[i] = vaddvq_u32(total[i]);
}
#endif

// What the zero points take from sums[i].
template <int kCount>
BARAQUANT_AVX2 void subtract_zero_points(const Packed& packed, int64_t row, const DotInput& input,
                                         uint32_t (&sums)[kCount]) {
  const int64_t groups = input.groups;
  const uint8_t* __restrict const factor = packed.factor + row * groups;
  const uint8_t* __restrict const zero_point =
      packed.zero_point ? packed.zero_point + row * groups : nullptr;
  for (int i = 0; i < kCount; ++i) {
    const int32_t* __restrict const of_group = input.group_sums + i * groups;
    uint32_t sum = 0;
    if (zero_point) {
      for (int64_t g = 0; g < groups; ++g) {
        sum += static_cast<uint32_t>(of_group[g]) * (uint32_t{factor[g]} * zero_point[g]);
      }
    } else {
      for (int64_t g = 0; g < groups; ++g) sum += static_cast<uint32_t>(of_group[g]) * factor[g];
      sum *= kMiddle;
    }
    sums[i] -= sum;
  }
}

template <int kCount>
BARAQUANT_AVX2 BARAQUANT_NEON_DOTPROD void dot_counted(const Packed& packed, int64_t row,
                                                       const DotInput& input, int32_t* target,
                                                       int64_t stride, int32_t* row_sum) {
  uint32_t sums[kCount];
  if (input.is_unsigned) {
    dot_row<kCount, true>(packed, row, input, sums);
  } else {
    dot_row<kCount, false>(packed, row, input, sums);
  }
  subtract_zero_points(packed, row, input, sums);
  const int rows = input.has_ones ? kCount - 1 : kCount;
  for (int i = 0; i < rows; ++i) target[i * stride] = static_cast<int32_t>(sums[i]);
  if (input.has_ones) *row_sum = static_cast<int32_t>(sums[kCount - 1]);
}
#endif

// target[i * stride] = row i of the input times a packed row, but for a row of ones, whose product is
// *row_sum; false, and nothing is written, if the packed row has to be expanded.
inline bool dot(const Packed& packed, int64_t row, const DotInput& input, int32_t* target,
                int64_t stride, int32_t* row_sum) {
#if defined(__x86_64__) || defined(__aarch64__)
  if (!fits_int8(packed, row)) return false;
  switch (input.count) {
    case 1:
      dot_counted<1>(packed, row, input, target, stride, row_sum);
      break;
    case 2:
      dot_counted<2>(packed, row, input, target, stride, row_sum);
      break;
    case 3:
      dot_counted<3>(packed, row, input, target, stride, row_sum);
      break;
    case kDotRows:
      dot_counted<kDotRows>(packed, row, input, target, stride, row_sum);
      break;
    default:
      dot_counted<kDotRows + 1>(packed, row, input, target, stride, row_sum);
  }
  return true;
#else
  return false;
#endif
}

}  // namespace baraquant::int4
