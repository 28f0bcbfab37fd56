// SPDX-License-Identifier: BSD-3-Clause
// Tests that FastGrid gives the bits of Grid for every scale, zero point and range that it accepts:
// random bits, quotients that are hard to round, ties and their neighbours, positions just outside
// the range, subnormals, infinities, NaN. OwnGrid gives the same bits for the numbers that its scale
// was computed from.
#include "checks.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include "elementwise/fast_math.h"
#include "range/math.h"

namespace {

using baraquant::bit_cast;
using baraquant::affine::FastGrid;
using baraquant::affine::Grid;
using baraquant::affine::OwnGrid;
using baraquant::affine::PlainGrid;
using baraquant::affine::QuantRange;
using checks::expect_at;
using checks::random_bits;
using checks::same;

int random_integer(int low, int high) {
  return static_cast<int>(checks::random_integer(low, high));
}

float random_scale() {
  const int exponent = random_bits() % 2 ? random_integer(63, 190) : random_integer(120, 127);
  const uint32_t mantissa = random_bits() % 8 ? random_bits() & 0x7fffff : 0x7fffff;
  return bit_cast<float>(static_cast<uint32_t>(exponent) << 23 | mantissa);
}

// Returns a value that is worth trying; k selects the kind of value.
float random_value(int k, float scale, float zero_point, QuantRange<float> range) {
  const float lowest = range.min - zero_point, highest = range.max - zero_point;
  const float specials[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-40f, 3e38f};
  switch (k % 4) {
    case 0:
      return bit_cast<float>(static_cast<uint32_t>(random_bits()));
    case 1:
      return specials[random_bits() % 8];
    case 2: {  // a quotient as near as can be to the midpoint of two floats, which is hard to round
      const double part = static_cast<double>(random_bits() >> 11) * 0x1p-53;
      const float quotient = static_cast<float>(lowest + (highest - lowest) * part);
      const double other = std::nextafter(quotient, INFINITY);
      return static_cast<float>((quotient + other) / 2 * static_cast<double>(scale));
    }
    default: {  // ties between integers, from just below to just above the range, and neighbours
      const double width = highest - lowest + 6;
      const double tie = std::floor(lowest - 3 + width * (random_bits() % 4096) / 4096.0) + 0.5;
      const float x = static_cast<float>(tie * static_cast<double>(scale));
      return bit_cast<float>(bit_cast<uint32_t>(x) + static_cast<uint32_t>(random_integer(-2, 2)));
    }
  }
}

// Whether another grid of this scale rounds a number as Grid does, with a mask and without one.
template <typename Other>
void check_rounding(float x, float scale, float zero_point, QuantRange<float> range) {
  const Grid<float> grid(scale, zero_point, range);
  const Other other(scale, zero_point, range);
  const auto check = [&](const char* what, bool equal) {
    expect_at(what, equal, x, scale, zero_point);
  };
  bool inside = false, other_inside = false;
  check("fake_quantize", same(grid.fake_quantize(x), other.fake_quantize(x)));
  check("quantize", same(grid.quantize(x), other.quantize(x)));
  check("byte", grid.quantize_byte(x) == other.quantize_byte(x));
  check("fake_quantize with mask",
        same(grid.fake_quantize(x, inside), other.fake_quantize(x, other_inside)));
  check("mask", inside == other_inside);
  check("quantize with mask", same(grid.quantize(x, inside), other.quantize(x, other_inside)));
  check("mask", inside == other_inside);
}

void check_value(float x, float scale, float zero_point, QuantRange<float> range) {
  check_rounding<FastGrid>(x, scale, zero_point, range);
  const Grid<float> grid(scale, zero_point, range);
  const FastGrid fast(scale, zero_point, range);
  const auto check = [&](const char* what, bool equal) {
    expect_at(what, equal, x, scale, zero_point);
  };
  check("inside", grid.is_inside(x) == fast.is_inside(x));
  if (FastGrid::is_tiny(x)) return;
  bool inside = false, fast_inside = false, valid = false, fast_valid = false;
  const float slope = grid.slope(x, inside, valid);
  const float fast_slope = fast.slope(x, fast_inside, fast_valid);
  check("slope", inside == fast_inside && valid == fast_valid);
  // The sign of a zero slope does not affect the sum.
  check("slope", !valid || same(slope + 0.0f, fast_slope + 0.0f));
  if (x != x) return;
  bool plain_inside = false, plain_valid = false;
  const float plain_slope = PlainGrid(scale, zero_point, range).slope(x, plain_inside, plain_valid);
  check("plain slope", plain_valid && plain_inside == fast_inside && same(plain_slope, fast_slope));
}

// Checks segments with random ends; between them lie ties of the scale that follows from the ends,
// and the neighbours of these ties.
template <bool symmetric, typename Own = OwnGrid<symmetric>>
void check_own(int64_t quant_min, int64_t quant_max) {
  using namespace baraquant::range;
  const Rule<float> rule(quant_min, quant_max, symmetric);
  if (!FastGrid::accepts_range(rule.range)) return;
  float low = random_value(0, 1, 0, rule.range), high = random_value(0, 1, 0, rule.range);
  // Numbers of 8 significant bits: their halves are ties if amax has 127 steps.
  if (random_bits() % 2 != 0) {
    low = bit_cast<float>(bit_cast<uint32_t>(low) & 0xffff0000u);
    high = bit_cast<float>(bit_cast<uint32_t>(high) & 0xffff0000u);
  }
  if (!(std::fabs(low) < 1e24f) || !(std::fabs(high) < 1e24f)) return;
  if (random_bits() % 2 != 0) high = low * static_cast<float>(random_integer(-300, 300)) / 256;
  const auto range_of = [](auto range, float a, float b) {
    return range.add(a), range.add(b), range;
  };
  const Chosen<float> chosen = symmetric ? choose(range_of(Magnitude<float>(), low, high), rule)
                                         : choose(range_of(MinMax<float>(), low, high), rule);
  const float zero_point = static_cast<float>(chosen.zero_point);
  if (!FastGrid::accepts(chosen.scale, zero_point)) return;
  const float least = std::fmin(low, high), most = std::fmax(low, high);
  for (int k = 0; k < 24; ++k) {
    float x = random_value(k % 2 == 0 ? 0 : 3, chosen.scale, zero_point, rule.range);
    if (k == 0) x = least;
    if (k == 1) x = most;
    if (k == 2) x = least / 2;
    if (k == 3) x = most / 2;
    if (symmetric) {
      if (!(std::fabs(x) <= std::fmax(std::fabs(low), std::fabs(high)))) continue;
    } else {
      if (!(x >= std::fmin(least, 0.0f) && x <= std::fmax(most, 0.0f))) continue;
    }
    check_rounding<Own>(x, chosen.scale, zero_point, rule.range);
  }
}

void check_own_grids() {
  const int64_t ranges[][2] = {{-128, 127},    {-127, 127},
                               {0, 255},       {-8, 7},
                               {0, 15},        {-2, 1},
                               {-1, 0},        {0, 1},
                               {-3, 100},      {-32768, 32767},
                               {5, 9},         {-100, -3},
                               {0, 65535},     {-1048576, 1048576},
                               {-1048576, -7}, {0, 1048575}};
  for (const auto& range : ranges) {
    const long long before = checks::made;
    for (int i = 0; i < 20000; ++i) {
      check_own<true>(range[0], range[1]);
      check_own<false>(range[0], range[1]);
      check_own<true, OwnGrid<false>>(range[0], range[1]);
    }
    expect_at("there are checks", checks::made > before + 20000, 0, 0, 0);
  }
}

}  // namespace

int main() {
  check_own_grids();
  const QuantRange<float> ranges[] = {{-128, 127}, {0, 255}, {-8, 7}, {-2, 1}, {-32768, 32767}};
  for (int i = 0; i < 40000; ++i) {
    const float scale = random_scale();
    const QuantRange<float> range = ranges[random_bits() % 5];
    const int zero_points[] = {0, random_integer(-300, 300), random_integer(-(1 << 20), 1 << 20)};
    const float zero_point = static_cast<float>(zero_points[random_bits() % 3]);
    if (!FastGrid::accepts_range(range) || !FastGrid::accepts(scale, zero_point)) continue;
    for (int k = 0; k < 16; ++k) {
      check_value(random_value(k, scale, zero_point, range), scale, zero_point, range);
    }
  }
  return checks::result();
}
