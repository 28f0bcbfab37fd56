// SPDX-License-Identifier: BSD-3-Clause
// The storage types of the kernels, without torch: float, double and two 16-bit types, with
//   to_compute<C>(x)  : exact for float16 and bfloat16
//   from_compute<T>(y): ONE rounding, half to even, also from double to a 16-bit type
// The host versions are branch-free integer arithmetic, so that a compiler can vectorise them.
// Layouts: IEEE 754 binary16 (5 exponent bits, bias 15); bfloat16 is the upper half of a binary32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include "machine/host_device.h"

namespace baraquant {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The compute type of a storage type: double for double, else float.
template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename To, typename From>
BARAQUANT_HD To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof(y));
  return y;
}

namespace detail {

BARAQUANT_HD float float16_to_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(h));
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  // Normal: move the fields and rebias the exponent by 127 - 15. Infinity and NaN: by twice that.
  const uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
  const uint32_t normal = (magnitude << 13) + rebias;
  // Subnormal: m * 2^-24 is exactly (0.5 + m * 2^-24) - 0.5, in normal numbers throughout.
  const float subnormal = bit_cast<float>(0x3f000000u | magnitude) - 0.5f;
  const uint32_t small = bit_cast<uint32_t>(subnormal);
  return bit_cast<float>(sign | (magnitude < 0x0400u ? small : normal));
#endif
}

BARAQUANT_HD uint16_t float_to_float16(float x) {
#if defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal: half to even by adding just under half a unit, plus the last kept bit. A carry runs
  // into the exponent, as it should, up to infinity.
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Subnormal: adding 0.5 makes the hardware round at 2^-24.
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? small : normal;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
#endif
}

BARAQUANT_HD float bfloat16_to_float(uint16_t b) {
  return bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

BARAQUANT_HD uint16_t float_to_bfloat16(float x) {
#if defined(__CUDA_ARCH__)
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
#endif
}

// Rounds to odd: truncates, and sets the last bit if anything was lost. Rounding the result again
// to at most 22 bits then equals one rounding of the double (Boldo and Melquiond, 2008).
BARAQUANT_HD float double_to_float_round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  const double magnitude = x < 0 ? -x : x;
  const double back_magnitude = back < 0 ? -back : back;
  uint32_t bits = bit_cast<uint32_t>(nearest);
  if (back_magnitude > magnitude) {
    bits -= 1;  // rounded away from zero: truncate (an overflow becomes the largest finite number)
  }
  if (back != x && x == x) {
    bits |= 1u;
  }
  return bit_cast<float>(bits);
}

}  // namespace detail

template <typename C, typename T>
BARAQUANT_HD C to_compute(T x) {
  if constexpr (std::is_same_v<T, Float16>) {
    return static_cast<C>(detail::float16_to_float(x.bits));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return static_cast<C>(detail::bfloat16_to_float(x.bits));
#if defined(__CUDA_ARCH__)
  } else if constexpr (sizeof(T) == 1 && std::is_same_v<C, float>) {
    // The GPU converts integers at an eighth of its rate of additions. Put the byte into the
    // mantissa of 2^23 instead, offset by 128 if it is signed.
    const uint32_t byte = static_cast<uint8_t>(x) ^ (std::is_signed_v<T> ? 0x80u : 0u);
    return bit_cast<float>(0x4b000000u | byte) - (std::is_signed_v<T> ? 8388736.0f : 8388608.0f);
#endif
  } else {
    return static_cast<C>(x);
  }
}

template <typename T, typename C>
BARAQUANT_HD T from_compute(C y) {
  if constexpr (std::is_same_v<T, Float16>) {
    if constexpr (std::is_same_v<C, double>) {
      return T{detail::float_to_float16(detail::double_to_float_round_to_odd(y))};
    } else {
      return T{detail::float_to_float16(y)};
    }
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    if constexpr (std::is_same_v<C, double>) {
      return T{detail::float_to_bfloat16(detail::double_to_float_round_to_odd(y))};
    } else {
      return T{detail::float_to_bfloat16(y)};
    }
  } else {
    return static_cast<T>(y);
  }
}

}  // namespace baraquant
