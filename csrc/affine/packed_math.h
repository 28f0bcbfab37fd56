// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic on whole packs of numbers, for which a GPU has instructions that take two numbers of
// 16 bits, or any bytes of two words. The host computes the same bits number by number.
#pragma once

#include "affine/fast_math.h"
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

}  // namespace baraquant::affine
