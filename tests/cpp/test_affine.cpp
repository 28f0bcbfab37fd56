// SPDX-License-Identifier: BSD-3-Clause
// Tests csrc/elementwise/math.h and csrc/machine/float_types.h without torch and Python, against cases
// made by hand and against arithmetic done in another way. The exit code is 1 if a check fails.
#include "checks.h"

#include "elementwise/elementwise_ops.h"
#include "elementwise/math.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "machine/float_types.h"

namespace {

using namespace baraquant;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Zeros have a sign.
void expect(const char* what, double got, double expected) {
  if (checks::fails(checks::same(got, expected))) {
    std::printf("%s: expected %.17g, got %.17g\n", what, expected, got);
  }
}

// Returns the nearest number with `digits` significant binary digits, none of them below
// 2^min_exponent, half to even. It uses ldexp instead of bit fields.
double round_to(double x, int digits, int min_exponent, double largest) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int unit = std::fmax(exponent - digits, min_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::fabs(rounded) > largest ? std::copysign(HUGE_VAL, x) : rounded;
}

double to_half(double x) { return round_to(x, 11, -24, 65504.0); }
double to_bfloat16(double x) { return round_to(x, 8, -133, 3.3895313892515355e38); }

template <typename T>
void check_storage(const char* name, double (*oracle)(double)) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {  // every value survives the conversion and back
    const T stored{static_cast<uint16_t>(bits)};
    const double value = to_compute<double>(stored);
    expect(name, to_compute<float>(stored), value);
    expect(name, value, oracle(value));
    expect(name, to_compute<float>(from_compute<T>(static_cast<float>(value))), value);
    // The midpoint between this value and the next one, and the two neighbours of the midpoint.
    const T next{static_cast<uint16_t>(bits + 1)};
    const double middle = 0.5 * (value + to_compute<double>(next));
    for (const double x :
         {middle, std::nextafter(middle, -HUGE_VAL), std::nextafter(middle, HUGE_VAL)}) {
      expect(name, to_compute<double>(from_compute<T>(x)), oracle(x));
    }
    expect(name, to_compute<float>(from_compute<T>(static_cast<float>(middle))),
           oracle(static_cast<float>(middle)));
  }
  for (int i = 0; i < 200000; ++i) {
    const float x = bit_cast<float>(static_cast<uint32_t>(checks::random_bits()));
    expect(name, to_compute<float>(from_compute<T>(x)), oracle(x));
    const double wide = bit_cast<double>(checks::random_bits());
    expect(name, to_compute<double>(from_compute<T>(wide)), oracle(wide));
  }
}

struct Case {
  float x, scale, zero_point, q, y, mask;
};

// The range is that of int4, [-8, 7].
constexpr Case kCases[] = {
    {0.25f, 0.5f, 0, 0, 0, 1},           // ties go to the even integer
    {0.75f, 0.5f, 0, 2, 1.0f, 1},        //
    {1.25f, 0.5f, 0, 2, 1.0f, 1},        //
    {-0.75f, 0.5f, 0, -2, -1.0f, 1},     //
    {0.25f, 0.5f, 1, 1, 0, 1},           // the zero point is added after rounding
    {3.5f, 0.5f, 0, 7, 3.5f, 1},         // the ends of the range are inside
    {-4.0f, 0.5f, 0, -8, -4.0f, 1},      //
    {3.76f, 0.5f, 0, 7, 3.5f, 0},        //
    {-4.26f, 0.5f, 0, -8, -4.0f, 0},     //
    {3e38f, 1.0f, 1, 7, 6.0f, 0},        // far beyond int32
    {kInf, 1.0f, 3, 7, 4.0f, 0},         //
    {-kInf, 1.0f, 3, -8, -11.0f, 0},     //
    {1.0f, 0.0f, 0, 7, 0, 0},            // 1 / 0 saturates
    {1.0f, kInf, 2, 2, kNan, 1},         // (2 - 2) * inf
    {1.0f, -0.5f, 0, -2, 1.0f, 1},       // a negative scale gives what the formula gives
    {1e-45f, 1e-45f, 0, 1, 1e-45f, 1},   // subnormal
    {16777216.0f, 1.0f, 0, 7, 7.0f, 0},  //
    {-16777216.0f, 1.0f, 0, -8, -8, 0},  //
};

template <typename C>
C dscale(C dy, C x, C scale, C zero_point, affine::QuantRange<C> range) {
  C dx;
  const affine::Grid<C> grid(scale, zero_point, range);
  return affine::QparamsGradient<C>::apply(dy, x, dx, grid).scale;
}

template <typename C>
C dzero(C dy, C x, C scale, C zero_point, affine::QuantRange<C> range) {
  C dx;
  const affine::Grid<C> grid(scale, zero_point, range);
  return affine::QparamsGradient<C>::apply(dy, x, dx, grid).zero_point;
}

template <typename C>
void check_cases() {
  const affine::QuantRange<C> range{-8, 7};
  for (const Case& c : kCases) {
    if (std::is_same_v<C, double> && c.x == 1e-45f) continue;
    const C x = c.x, scale = c.scale, zero_point = c.zero_point;
    const C v = affine::grid_position<C>(x, scale, zero_point);
    expect("q", affine::quantized_value<C>(v, zero_point, range), c.q);
    const C y = affine::fake_quantized_value<C>(v, scale, zero_point, range);
    expect("y", y == 0 ? C(0) : y, c.y);
    expect("mask", affine::is_inside<C>(v, range), c.mask);
  }
  // A NaN position gives the zero point clamped to the range, a NaN, and no gradient.
  for (const C zero_point : {C(3), C(100), C(-100)}) {
    const C v = affine::grid_position<C>(kNan, 1, zero_point);
    const C clamped = zero_point > 7 ? 7 : zero_point < -8 ? -8 : zero_point;
    expect("q of NaN", affine::quantized_value<C>(v, zero_point, range), clamped);
    expect("y of NaN", affine::fake_quantized_value<C>(v, 1, zero_point, range), kNan);
    expect("mask of NaN", affine::is_inside<C>(v, range), 0);
    expect("ds of NaN", dscale<C>(5, kNan, 1, zero_point, range), 0);
  }
  expect("-0", affine::grid_position<C>(C(-0.0), 1, 0), 0.0);
  expect("ds inside", dscale<C>(2, C(0.75), C(0.5), 0, range), 1);  // 2*(2-1.5)
  expect("ds above", dscale<C>(2, 100, C(0.5), 1, range), 12);      // 2*(7-1)
  expect("dz inside", dzero<C>(2, C(1.5), C(0.5), 0, range), 0);
  expect("dz outside", dzero<C>(2, 4, C(0.5), 0, range), -1);
  expect("learned z", affine::learned_zero_point<C>(C(2.5), range), 2);
  expect("learned z, clamped", affine::learned_zero_point<C>(C(9.5), range), 7);
}

// Each step rounds once. A double represents the quotient or the product of two floats so well that
// rounding it once more gives the float result; an fma would give another one.
void check_float_steps() {
  const affine::QuantRange<float> range{-128, 127};
  for (int i = 0; i < 1000000; ++i) {
    const float x = bit_cast<float>(static_cast<uint32_t>(checks::random_bits()));
    // A scale near |x| / 100, so that most positions lie in the range.
    const float scale =
        std::fabs(x) * (0.002f + static_cast<float>(checks::random_bits() % 1000) * 1e-5f);
    const float zero_point =
        static_cast<float>(static_cast<int>(checks::random_bits() % 256) - 128);
    const float ratio = static_cast<float>(static_cast<double>(x) / static_cast<double>(scale));
    const float v = std::nearbyint(ratio) + zero_point;
    const float q = v < -128 ? -128 : v > 127 ? 127 : v;
    const float y = static_cast<float>(static_cast<double>(q - zero_point) * scale);
    expect("v", affine::grid_position(x, scale, zero_point), v);
    expect("y", affine::fake_quantized_value(v, scale, zero_point, range), y);
    const float slope = v >= -128 && v <= 127 ? std::nearbyint(ratio) - ratio : q - zero_point;
    const float ds = v == v ? static_cast<float>(3.7f * static_cast<double>(slope)) : 0.0f;
    expect("ds", dscale<float>(3.7f, x, scale, zero_point, range), ds);
  }
}

}  // namespace

int main() {
  check_cases<float>();
  check_cases<double>();
  check_float_steps();
  check_storage<Float16>("float16", to_half);
  check_storage<BFloat16>("bfloat16", to_bfloat16);
  return checks::result();
}
