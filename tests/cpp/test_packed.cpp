// SPDX-License-Identifier: BSD-3-Clause
// Tests the arithmetic on packs (affine/packed_math.h, machine/packed_registers.h): it gives the
// bits of affine/math.h for every byte and every number of 16 bits, with many scales.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "affine/packed_math.h"

namespace {

using namespace baraquant;
using namespace baraquant::affine;

long long checks = 0, failures = 0;

uint64_t random_bits() {  // xorshift64
  static uint64_t state = 88172645463325252ull;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

bool same(float a, float b) {
  return bit_cast<uint32_t>(a) == bit_cast<uint32_t>(b) || (a != a && b != b);
}

void expect(const char* what, bool equal, double x, double scale, double zero_point) {
  ++checks;
  if (!equal && ++failures <= 20) std::printf("%s: x=%a s=%a z=%g\n", what, x, scale, zero_point);
}

template <typename T>
T from_bits(uint32_t bits) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<T>(bits);
  } else if constexpr (sizeof(T) == 2) {
    return T{static_cast<uint16_t>(bits)};
  } else {
    return bit_cast<T>(bits);
  }
}

template <typename T>
uint32_t bits_of(T x) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<uint8_t>(x);
  } else if constexpr (sizeof(T) == 2) {
    return x.bits;
  } else {
    return bit_cast<uint32_t>(x);
  }
}

// Words hold their elements as memory does.
template <typename T>
void check_words() {
  constexpr int kSize = 8;
  Words<T, kSize> words{};
  T elements[kSize];
  static_assert(sizeof(words) == sizeof(elements));
  words.fill(from_bits<T>(0xa5a5a5a5u));
  for (int i = 0; i < kSize; ++i) {
    expect("fill", bits_of(words.get(i)) == bits_of(from_bits<T>(0xa5a5a5a5u)), i, 0, 0);
  }
  for (int i = 0; i < kSize; ++i) {
    elements[i] = from_bits<T>(static_cast<uint32_t>(random_bits()));
    words.set(i, elements[i]);
  }
  for (int i = 0; i < kSize; ++i) {
    expect("get", bits_of(words.get(i)) == bits_of(elements[i]), i, 0, 0);
  }
  expect("memory", std::memcmp(&words, elements, sizeof(words)) == 0, 0, 0, 0);
}

template <typename Q>
void check_dequantize() {
  const float scales[] = {0.02f, 1.0f, 3e38f, 1e-45f, -0.5f, 0.0f, INFINITY, NAN};
  const float zero_points[] = {0, 1, -1, 127, 128, -128, 255, 1e5f, 1048576, -1048576};
  for (const float scale : scales) {
    for (const float zero_point : zero_points) {
      expect("accepts", ByteGrid<Q>::accepts(scale, zero_point, {0, 255}), 0, scale, zero_point);
      const ByteGrid<Q> grid(scale, zero_point, {0, 255});
      for (int first = 0; first < 256; first += 8) {
        Words<Q, 8> bytes{};
        for (int i = 0; i < 8; ++i) bytes.set(i, from_bits<Q>(static_cast<uint32_t>(first + i)));
        for (int i = 0; i < 8; ++i) {
          const float q = bytes.get(i);
          expect("dequantize",
                 same(grid.dequantize(ByteGrid<Q>::prepared(bytes), i),
                      affine::dequantize(q, scale, zero_point)),
                 q, scale, zero_point);
        }
      }
    }
  }
  for (const float zero_point : {1048577.0f, -3e9f, INFINITY, NAN}) {
    expect("accepts", !ByteGrid<Q>::accepts(1, zero_point, {0, 255}), 0, 1, zero_point);
  }
}

template <typename T>
void check_plain() {
  const float numbers[] = {1.0f, -3.0f, 0.0f, -0.0f, 65504.0f, 0x1p-24f, INFINITY, -INFINITY};
  Words<T, 8> words{};
  for (int i = 0; i < 8; ++i) words.set(i, from_compute<T>(numbers[i]));
  expect("plain", are_plain(words), 0, 0, 0);
  for (int i = 0; i < 8; ++i) {
    for (const float x : {NAN, -NAN, 0x1p-61f, -0x1p-126f}) {
      Words<T, 8> changed = words;
      changed.set(i, from_compute<T>(x));
      const float stored = to_compute<float>(changed.get(i));
      expect("plain", are_plain(changed) == (stored == 0), x, 0, 0);
    }
  }
}

}  // namespace

int main() {
  check_words<int8_t>();
  check_words<uint8_t>();
  check_words<BFloat16>();
  check_words<Float16>();
  check_words<float>();
  check_dequantize<int8_t>();
  check_dequantize<uint8_t>();
  check_plain<float>();
  check_plain<BFloat16>();
  check_plain<Float16>();
  std::printf("%lld checks, %lld failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
