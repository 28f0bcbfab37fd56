// SPDX-License-Identifier: BSD-3-Clause
// What the test programs share: a count of checks, random bits, comparisons, and the last line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "machine/float_types.h"

namespace checks {

inline long long made = 0, failures = 0;

// Counts a check, and returns whether there is something to say: of the first failures alone.
inline bool fails(bool right) {
  ++made;
  return !right && ++failures <= 20;
}

inline void expect(const char* what, bool right, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
  if (!fails(right)) return;
  std::printf("%s: %lld %lld %lld\n", what, static_cast<long long>(a), static_cast<long long>(b),
              static_cast<long long>(c));
}

// Of a number, a scale and a zero point.
inline void expect_at(const char* what, bool right, double x, double scale, double zero_point) {
  if (fails(right)) std::printf("%s: x=%a s=%a z=%g\n", what, x, scale, zero_point);
}

// xorshift64: random bits cover every exponent.
inline uint64_t random_bits() {
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

inline int64_t random_integer(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_bits() % static_cast<uint64_t>(high - low + 1));
}

// The same bits; any NaN equals any other.
template <typename T>
bool same(T a, T b) {
  using C = baraquant::ComputeType<T>;
  const C x = baraquant::to_compute<C>(a), y = baraquant::to_compute<C>(b);
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (x != x && y != y);
}

// What main returns.
inline int result() {
  std::printf("%lld checks, %lld failed\n", made, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace checks
