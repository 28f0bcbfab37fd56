// SPDX-License-Identifier: BSD-3-Clause
// Questions about a whole pack of numbers, which a GPU answers with instructions for two numbers of
// 16 bits at once. The host answers them number by number.
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

}  // namespace baraquant::affine
