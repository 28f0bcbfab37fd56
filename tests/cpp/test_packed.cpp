// SPDX-License-Identifier: BSD-3-Clause
// Tests the arithmetic on packs (elementwise/packed_math.h, machine/packed_registers.h): it gives the
// bits of elementwise/math.h for every byte and every number of 16 bits, with many scales.
#include "checks.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "elementwise/packed_math.h"

namespace {

using namespace baraquant;
using namespace baraquant::affine;
using checks::expect_at;
using checks::random_bits;
using checks::same;

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 1, uint8_t,
                                std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>;

template <typename T>
T from_bits(uint32_t bits) {
  return bit_cast<T>(static_cast<Bits<T>>(bits));
}

template <typename T>
uint32_t bits_of(T x) {
  return bit_cast<Bits<T>>(x);
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
    expect_at("fill", bits_of(words.get(i)) == bits_of(from_bits<T>(0xa5a5a5a5u)), i, 0, 0);
  }
  for (int i = 0; i < kSize; ++i) {
    elements[i] = from_bits<T>(static_cast<uint32_t>(random_bits()));
    words.set(i, elements[i]);
  }
  for (int i = 0; i < kSize; ++i) {
    expect_at("get", bits_of(words.get(i)) == bits_of(elements[i]), i, 0, 0);
  }
  expect_at("memory", std::memcmp(&words, elements, sizeof(words)) == 0, 0, 0, 0);
}

template <typename Q>
void check_dequantize() {
  const float scales[] = {0.02f, 1.0f, 3e38f, 1e-45f, -0.5f, 0.0f, INFINITY, NAN};
  const float zero_points[] = {0, 1, -1, 127, 128, -128, 255, 1e5f, 1048576, -1048576};
  for (const float scale : scales) {
    for (const float zero_point : zero_points) {
      expect_at("accepts", ByteGrid<Q>::accepts(scale, zero_point, {0, 255}), 0, scale, zero_point);
      const ByteGrid<Q> grid(scale, zero_point, {0, 255});
      for (int first = 0; first < 256; first += 8) {
        Words<Q, 8> bytes{};
        for (int i = 0; i < 8; ++i) bytes.set(i, from_bits<Q>(static_cast<uint32_t>(first + i)));
        for (int i = 0; i < 8; ++i) {
          const float q = bytes.get(i);
          expect_at("dequantize",
                    same(grid.dequantize(ByteGrid<Q>::prepared(bytes), i),
                         affine::dequantized_value(q, scale, zero_point)),
                    q, scale, zero_point);
        }
      }
    }
  }
  for (const float zero_point : {1048577.0f, -3e9f, INFINITY, NAN}) {
    expect_at("accepts", !ByteGrid<Q>::accepts(1, zero_point, {0, 255}), 0, 1, zero_point);
  }
}

// Note [Why QuotientGrid gives the same bits], 2.: goes through every quotient that may round to
// another side of k + 1/2 than the exact one. Between k + 1/2 and a neighbour lies a midpoint m;
// only the significands of scales next to x / m can bring x / s near enough to it.
template <int digits>
void check_quotients() {
  long long different = 0;
  for (int x = 1 << (digits - 1); x < 1 << digits; ++x) {
    for (int k = 0; k < 300; ++k) {
      const float tie = static_cast<float>(k) + 0.5f;
      for (const float neighbour : {std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
        const double middle = 0.5 * (static_cast<double>(tie) + static_cast<double>(neighbour));
        int exponent = 0;
        const double significand = std::frexp(x / middle, &exponent);
        const double near = std::floor(std::ldexp(significand, 24));
        for (int step = -1; step <= 2; ++step) {
          const float scale = static_cast<float>(std::ldexp(near + step, exponent - 24));
          const float number = static_cast<float>(x);
          const float high = 1.0f / scale, low = std::fmaf(-scale, high, 1.0f) * high;
          const float quotient = std::fmaf(number, high, number * low);
          ++checks::made;
          if (std::rint(quotient) == std::rint(number / scale)) continue;
          ++different;
          expect_at("a quotient", !QuotientGrid<BFloat16>::accepts(scale, 0, {-128, 127}), number,
                    scale, 0);
        }
      }
    }
  }
  expect_at("one significand differs", different > 0, digits, 0, 0);
}

// All numbers of 16 bits, in words of two that lie in columns with the same scale.
template <typename T>
void check_quantize(float scale, float zero_point, QuantRange<float> range) {
  if (!QuotientGrid<T>::accepts(scale, zero_point, range)) return;
  const QuotientGrid<T> fast(scale, zero_point, range);
  const Grid<float> grid(scale, zero_point, range);
  for (uint32_t bits = 0; bits < 65536; bits += 2) {
    Words<T, 2> words{};
    words.set(0, from_bits<T>(bits));
    words.set(1, from_bits<T>(bits + 1));
    Words<T, 2> limited = words;
    limit_words(limited, [&](int) { return fast; });
    for (int i = 0; i < 2; ++i) {
      const float x = to_compute<float>(words.get(i)), y = to_compute<float>(limited.get(i));
      expect_at("a NaN stays", (x != x) == (y != y) && (x == x || has_nan(limited)), x, scale, 0);
      if (x != x) continue;
      expect_at("byte", static_cast<uint8_t>(fast.byte_of_limited(y)) == grid.quantize_byte(x), x,
                scale, zero_point);
    }
  }
}

template <typename T>
void check_scales() {
  const QuantRange<float> ranges[] = {{-128, 127}, {0, 255}, {-127, 127}, {-8, 7}, {5, 9}};
  const float ends[] = {0x1p-64f,        0x1.fffffcp-60f, 0x1p-22f,       0x1.8p-22f, 0x1.3p-17f,
                        0x1.fffffcp-15f, 0x1p-14f,        0x1.fffffcp-1f, 1.0f,       3.0f,
                        0x1p7f,          0x1.fffffcp6f,   0x1.fffffcp20f, 0x1p64f};
  long long before = checks::made;
  for (const float scale : ends) check_quantize<T>(scale, 0, ranges[0]);
  for (int i = 0; i < 60; ++i) {
    const QuantRange<float> range = ranges[random_bits() % 5];
    const int exponent = 105 + static_cast<int>(random_bits() % 28);
    const uint32_t significand = static_cast<uint32_t>(random_bits()) & 0x7fffffu;
    // Scales of few digits: many quotients are ties.
    const uint32_t digits = i % 3 == 0 ? significand & 0x7f0000u : significand;
    const float scale = bit_cast<float>(static_cast<uint32_t>(exponent) << 23 | digits);
    const float zero_point = static_cast<float>(static_cast<int>(random_bits() % 256)) + range.min;
    check_quantize<T>(scale, zero_point, range);
  }
  expect_at("there are checks", checks::made > before + 1000000, 0, 0, 0);
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN, 0x1.fffffep-3f, 0x1p-65f, 0x1p65f}) {
    expect_at("accepts", !QuotientGrid<T>::accepts(scale, 0, ranges[0]), 0, scale, 0);
  }
  for (const float zero_point : {-129.0f, 128.0f, INFINITY, NAN}) {
    expect_at("accepts", !QuotientGrid<T>::accepts(1, zero_point, ranges[0]), 0, 1, zero_point);
  }
}

template <typename T>
void check_plain() {
  const float numbers[] = {1.0f, -3.0f, 0.0f, -0.0f, 65504.0f, 0x1p-24f, INFINITY, -INFINITY};
  Words<T, 8> words{};
  for (int i = 0; i < 8; ++i) words.set(i, from_compute<T>(numbers[i]));
  expect_at("plain", are_plain(words), 0, 0, 0);
  for (int i = 0; i < 8; ++i) {
    for (const float x : {NAN, -NAN, 0x1p-61f, -0x1p-126f}) {
      Words<T, 8> changed = words;
      changed.set(i, from_compute<T>(x));
      const float stored = to_compute<float>(changed.get(i));
      expect_at("plain", are_plain(changed) == (stored == 0), x, 0, 0);
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
  check_quotients<8>();
  check_quotients<11>();
  check_scales<BFloat16>();
  check_scales<Float16>();
  return checks::result();
}
