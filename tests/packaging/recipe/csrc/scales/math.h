// SPDX-License-Identifier: BSD-3-Clause
// The formula of the scales family, without torch and CUDA:
//   y = 2^rint(log2(x))
// A scale is f * 2^e with 1 <= f < 2. It becomes 2^e where f lies below the square root of 2, else
// 2^(e + 1). No f is that root, so there is no tie. Only integers are computed, which are the same
// everywhere, also where a CPU takes subnormal numbers for 0.
#pragma once

#include <cstdint>

#include "machine/float_types.h"

namespace baraquant::scales {

template <typename C>
struct Layout;
template <>
struct Layout<float> {
  using Bits = uint32_t;
  static constexpr int kFraction = 23;       // the bits of f - 1
  static constexpr Bits kRoot = 0x3504f4;    // the smallest f - 1 above the root
  static constexpr Bits kLast = 0x7f000000;  // 2^127, the largest power of two
};
template <>
struct Layout<double> {
  using Bits = uint64_t;
  static constexpr int kFraction = 52;
  static constexpr Bits kRoot = 0x6a09e667f3bcd;
  static constexpr Bits kLast = 0x7fe0000000000000;
};

// The bits of the largest power of two that T has.
template <typename T>
constexpr auto kLast = Layout<ComputeType<T>>::kLast;
template <>
inline constexpr uint32_t kLast<Float16> = 0x47000000;  // 2^15

// Zeros, infinities and NaNs stay what they are, and so does the sign. A scale whose power of two T
// does not have becomes the largest one.
template <typename T>
BARAQUANT_HD T nearest_power_of_two(T scale) {
  using C = ComputeType<T>;
  using L = Layout<C>;
  using Bits = typename L::Bits;
  constexpr Bits kOne = Bits(1) << L::kFraction, kInfinity = L::kLast + kOne;
  const C x = to_compute<C>(scale);
  const Bits bits = bit_cast<Bits>(x), magnitude = bits & ~(Bits(1) << (8 * sizeof(C) - 1));
  if (magnitude == 0 || magnitude >= kInfinity) return scale;
  Bits fraction = magnitude & (kOne - 1), power = magnitude - fraction;
  if (power == 0) {  // subnormal: the leading bit is the power, those below it are the fraction
    int leading = L::kFraction - 1;
    while ((magnitude >> leading) == 0) --leading;
    fraction = (magnitude << (L::kFraction - leading)) & (kOne - 1);
    power = Bits(1) << leading;
    if (fraction >= L::kRoot) power <<= 1;
  } else if (fraction >= L::kRoot) {
    power += kOne;
  }
  const Bits largest = kLast<T>;
  return from_compute<T>(
      bit_cast<C>(static_cast<Bits>((bits ^ magnitude) | (power < largest ? power : largest))));
}

}  // namespace baraquant::scales
