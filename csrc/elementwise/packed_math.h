// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic on whole packs of numbers, for which a GPU has instructions that take two numbers of
// 16 bits, or any bytes of two words. The host computes the same bits number by number.
#pragma once

#include "elementwise/fast_math.h"
#include "machine/packed_registers.h"

namespace baraquant::affine {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// The magnitudes of a word's numbers, and the lesser ones of two words' magnitudes: a NaN if one of
// them is a NaN.
__device__ __forceinline__ float magnitude(float a) { return fabsf(a); }
__device__ __forceinline__ __half2 magnitude(__half2 a) { return __habs2(a); }
__device__ __forceinline__ __nv_bfloat162 magnitude(__nv_bfloat162 a) { return __habs2(a); }
__device__ __forceinline__ float lesser(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ __forceinline__ __half2 lesser(__half2 a, __half2 b) { return __hmin2_nan(a, b); }
__device__ __forceinline__ __nv_bfloat162 lesser(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmin2_nan(a, b);
}

// The greater ones of two words' numbers; a NaN if one of them is a NaN.
__device__ __forceinline__ __half2 greater(__half2 a, __half2 b) { return __hmax2_nan(a, b); }
__device__ __forceinline__ __nv_bfloat162 greater(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmax2_nan(a, b);
}
template <typename W>
__device__ __forceinline__ W pair_of(float first, float second) {
  if constexpr (std::is_same_v<W, __half2>) {
    return __floats2half2_rn(first, second);
  } else {
    return __floats2bfloat162_rn(first, second);
  }
}

// Whether a word's magnitudes are at least 2^-60, and none is a NaN. No float16 is tiny.
__device__ __forceinline__ bool are_large(float least) { return least >= 0x1p-60f; }
__device__ __forceinline__ bool are_large(__half2 least) {
  return __hbge2(least, __float2half2_rn(0.0f));
}
__device__ __forceinline__ bool are_large(__nv_bfloat162 least) {
  return __hbge2(least, __float2bfloat162_rn(0x1p-60f));
}

template <typename T>
using DeviceWord =
    std::conditional_t<std::is_same_v<T, float>, float,
                       std::conditional_t<std::is_same_v<T, Float16>, __half2, __nv_bfloat162>>;
#endif

// Whether one of the numbers, of 16 bits each, is a NaN.
template <typename T, int size>
BARAQUANT_HD bool has_nan(const Words<T, size>& x) {
  static_assert(sizeof(T) == 2 && size >= 2);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  using W = DeviceWord<T>;
  W least = bit_cast<W>(x.at[0]);
#pragma unroll
  for (int w = 1; w < x.kCount; ++w) least = lesser(least, bit_cast<W>(x.at[w]));
  return !__hbeq2(least, least);
#else
  bool found = false;
  for (int i = 0; i < size; ++i) {
    const float number = to_compute<float>(x.get(i));
    found = found || number != number;
  }
  return found;
#endif
}

// Whether none of the numbers is a NaN or FastGrid::is_tiny(), so that PlainGrid takes all of them.
template <typename T, int size>
BARAQUANT_HD bool are_plain(const Words<T, size>& x) {
  if constexpr (std::is_same_v<T, double>) {
    return true;  // Grid<double> takes any number
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    using W = DeviceWord<T>;
    W least = magnitude(bit_cast<W>(x.at[0]));
#pragma unroll
    for (int w = 1; w < x.kCount; ++w) least = lesser(least, magnitude(bit_cast<W>(x.at[w])));
    if (are_large(least)) return true;  // what is left are zeros, and numbers that are not plain
#endif
    bool plain = true;
    for (int i = 0; i < size; ++i) {
      const float number = to_compute<float>(x.get(i));
      plain = plain && number == number && !FastGrid::is_tiny(number);
    }
    return plain;
  }
}

// 2^23 + the byte i of the words, which is an exact float: the byte lies in its lowest bits.
template <typename Q, int size>
BARAQUANT_HD float byte_above_2_23(const Words<Q, size>& bytes, int i) {
#if defined(__CUDA_ARCH__)
  return bit_cast<float>(__byte_perm(bytes.at[i / 4], 0x4b000000u, 0x7650u + i % 4));
#else
  return bit_cast<float>(0x4b000000u | static_cast<uint8_t>(bytes.get(i)));
#endif
}

// Dequantizes integers of 8 bits. With b = q for uint8 and q + 128 for int8 (its sign bit flipped),
// q - z is (2^23 + b) - (2^23 + z) or (2^23 + b) - (2^23 + 128 + z): integers below 2^24 throughout,
// so that all of it is exact while |z| <= 2^20.
template <typename Q>
class ByteGrid {
 public:
  static_assert(sizeof(Q) == 1);
  BARAQUANT_HD static bool accepts(float, float zero_point, QuantRange<float>) {
    return fabsf(zero_point) <= 0x1p20f;
  }
  ByteGrid() = default;  // must be assigned before use
  BARAQUANT_HD ByteGrid(float scale, float zero_point, QuantRange<float>)
      : scale_(scale), offset_((std::is_signed_v<Q> ? 0x1p23f + 128.0f : 0x1p23f) + zero_point) {}

  // Flips the sign bits of signed bytes, as dequantize() wants them.
  template <int size>
  BARAQUANT_HD static Words<Q, size> prepared(Words<Q, size> bytes) {
    if constexpr (std::is_signed_v<Q>) {
      for (int w = 0; w < bytes.kCount; ++w) bytes.at[w] ^= static_cast<int32_t>(0x80808080u);
    }
    return bytes;
  }
  template <int size>
  BARAQUANT_HD float dequantize(const Words<Q, size>& prepared, int i) const {
    return (byte_above_2_23(prepared, i) - offset_) * scale_;
  }

 private:
  float scale_, offset_;
};

// Quantizes numbers of T's 16 bits to bytes.
//
// Note [Why QuotientGrid gives the same bits]
// Let lo = quant_min - z and hi = quant_max - z, integers of at most 255 in magnitude.
// 1. First x is limited to [RN_T(RN(s (lo - 1))), RN_T(RN(s (hi + 1)))]. T has at least 8
//    significant bits, so that the quotient of such a limit is within 256 (1/257 + 2^-23) < 1 of
//    lo - 1 or hi + 1. So it lies beyond lo or hi, and so does every x beyond it: after the clamp in
//    3. all of them are lo or hi. With float16 the limits must not overflow (s <= 2^7), and may be
//    subnormal, with an error below 2^-25, while that is s / 8 or less (s >= 2^-22).
// 2. With yh = RN(1 / s), yl = RN(fma(-s, yh, 1) * yh) and a = RN(x * yl), q = fma(x, yh, a) is the
//    quotient with an error below 2^-45 of it, rounded once. So rint(q) can differ from
//    rint(RN(x / s)) only where x / s lies that near to the midpoint of k + 1/2 and one of its
//    neighbours. For the 8 or 11 significant bits of x, |k| < 300 and the 24 bits of s this occurs
//    with one significand of s alone, 2^24 - 1: tests/cpp/test_packed.cpp goes through all cases.
//    Nothing overflows, and where x * yl underflows, |q| < 1/4.
// 3. (q + 1.5 * 2^23) + z is 1.5 * 2^23 + v exactly (fast_math.h). It is clamped, and its low bits
//    are the integer.
template <typename T>
class QuotientGrid {
 public:
  static_assert(sizeof(T) == 2);
  BARAQUANT_HD static bool accepts(float scale, float zero_point, QuantRange<float> range) {
    constexpr bool kHalf = std::is_same_v<T, Float16>;
    return scale >= (kHalf ? 0x1p-22f : 0x1p-64f) && scale <= (kHalf ? 0x1p7f : 0x1p64f) &&
           (bit_cast<uint32_t>(scale) & 0x7fffffu) != 0x7fffffu &&
           fabsf(range.min - zero_point) <= 255.0f && fabsf(range.max - zero_point) <= 255.0f;
  }
  QuotientGrid() = default;  // must be assigned before use
  BARAQUANT_HD QuotientGrid(float scale, float zero_point, QuantRange<float> range)
      : high_(reciprocal_of(scale)),
        low_(fmaf(-scale, high_, 1.0f) * high_),
        zero_point_(zero_point),
        lowest_(scale * (range.min - zero_point - 1.0f)),
        highest_(scale * (range.max - zero_point + 1.0f)),
        range_(range) {}

  // The limits of 1., not yet rounded to T.
  BARAQUANT_HD float lowest() const { return lowest_; }
  BARAQUANT_HD float highest() const { return highest_; }

  // A word whose low byte is the integer, for an x within the limits.
  BARAQUANT_HD uint32_t byte_of_limited(float x) const {
    const float v = (fmaf(x, high_, x * low_) + kRounder) + zero_point_;
    return bit_cast<uint32_t>(fminf(fmaxf(v, kRounder + range_.min), kRounder + range_.max));
  }

 private:
  static constexpr float kRounder = 0x1.8p23f;

  float high_, low_, zero_point_, lowest_, highest_;
  QuantRange<float> range_;
};

// Limits number i to the limits of grid_at(i); a NaN stays.
template <typename T, int size, typename GridAt>
BARAQUANT_HD void limit_words(Words<T, size>& x, const GridAt& grid_at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  using W = DeviceWord<T>;
#pragma unroll
  for (int w = 0; w < x.kCount; ++w) {
    const auto first = grid_at(2 * w), second = grid_at(2 * w + 1);
    W word = bit_cast<W>(x.at[w]);
    word = greater(word, pair_of<W>(first.lowest(), second.lowest()));
    word = lesser(word, pair_of<W>(first.highest(), second.highest()));
    x.at[w] = bit_cast<int32_t>(word);
  }
#else
  const auto rounded = [](float y) { return to_compute<float>(from_compute<T>(y)); };
  for (int i = 0; i < size; ++i) {
    const auto grid = grid_at(i);
    const QuantRange<float> limits{rounded(grid.lowest()), rounded(grid.highest())};
    x.set(i, from_compute<T>(clamp(to_compute<float>(x.get(i)), limits)));
  }
#endif
}

}  // namespace baraquant::affine
