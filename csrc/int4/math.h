// SPDX-License-Identifier: BSD-3-Clause
// Weights of four bits with two levels of scales, without torch. A row of the weight has one
// floating scale, and each group of neighbours in the row has a whole factor f and a zero point z:
//   w8 = (u - z) * f     an int8; u is the stored number of four bits, 0 .. 15
//   w  = w8 * scale      what it stands for
// So a product with w8 is one sum of integers over the whole row: it is exact, and has the same bits
// in any order (int8_mm/math.h). Two levels of scales: Dettmers et al. 2023, "QLoRA: Efficient
// Finetuning of Quantized LLMs", section 3 (there both levels are floating).
//
// With a scale of max |w| / 112 and factors of at most 16, 7 * 16 steps reach the largest weight, and
// every w8 that is chosen here fits into int8 with its rounding. A weight of two or three bits has
// the same form, and numbers of a narrower Width: 1 * 16 or 3 * 16 steps reach its largest weight.
#pragma once

#include <cstdint>

#include "elementwise/math.h"
#include "machine/integers.h"
#include "range/math.h"

namespace baraquant::int4 {

constexpr int kMaxFactor = 16;
constexpr int kMiddle = 8;    // the zero point of a symmetric group
constexpr int kLargest = 15;  // the largest number of four bits

// The numbers of 2 to 4 bits: u - kMiddle is a signed integer of that width.
struct Width {
  int bits = 4;

  BARAQUANT_HD constexpr int half() const { return 1 << (bits - 1); }
  BARAQUANT_HD constexpr int least() const { return kMiddle - half(); }
  BARAQUANT_HD constexpr int most() const { return kMiddle + half() - 1; }
  BARAQUANT_HD constexpr int span() const { return 2 * half() - 1; }
  BARAQUANT_HD constexpr int positive() const { return half() - 1; }  // the largest u - kMiddle
};

struct Group {
  uint8_t factor = 1, zero_point = kMiddle;
};

// NB: it wraps for numbers that quantize() does not give.
constexpr BARAQUANT_HD int8_t expand(uint32_t u, Group group) {
  return static_cast<int8_t>((u - group.zero_point) * group.factor);
}

template <typename C>
BARAQUANT_HD C row_scale(C amax, Width width) {
  return range::usable_scale(amax / C(width.positive() * kMaxFactor), amax == C(0));
}

// The factor of a group that needs this many steps of the row's scale. NB: a NaN gives 1.
template <typename C>
BARAQUANT_HD uint8_t factor_of(C steps) {
  // Rounds up: the smallest integer that is not below steps.
  const C rounded = round_half_even(steps);
  const C up = rounded < steps ? rounded + C(1) : rounded;
  return static_cast<uint8_t>(up > C(1) ? (up < C(kMaxFactor) ? up : C(kMaxFactor)) : C(1));
}

template <typename C>
BARAQUANT_HD Group choose_symmetric(C amax, C scale, Width width) {
  return {factor_of((amax / C(width.positive())) / scale), kMiddle};
}

// For a group whose values, and 0, lie in [low, high].
template <typename C>
BARAQUANT_HD Group choose_asymmetric(C low, C high, C scale, Width width) {
  const C span = C(width.span()), least = C(width.least()), most = C(width.most());
  const uint8_t factor = factor_of((high / span - low / span) / scale);
  const C position = least + round_half_even(-low / (scale * static_cast<C>(factor)));
  const C zero_point = position > least ? position : least;  // a NaN gives the least
  return {factor, static_cast<uint8_t>(zero_point < most ? zero_point : most)};
}

// How the values of a group become numbers of a width: affine quantization with the scale
// scale * f, to those u whose w8 fits into int8.
template <typename C>
class Grid {
 public:
  BARAQUANT_HD Grid(C scale, Group group, Width width)
      : scale_(scale * static_cast<C>(group.factor)), zero_point_(group.zero_point) {
    const int factor = group.factor > 1 ? group.factor : 1;
    const int z = group.zero_point, low = z - 128 / factor, high = z + 127 / factor;
    const int least = width.least(), most = width.most();
    range_ = {static_cast<C>(low > least ? low : least), static_cast<C>(high < most ? high : most)};
  }
  BARAQUANT_HD uint32_t quantize(C x) const {
    const C v = affine::grid_position(x, scale_, zero_point_);
    return static_cast<uint32_t>(affine::quantized_value(v, zero_point_, range_));
  }

 private:
  C scale_, zero_point_;
  affine::QuantRange<C> range_;
};

// A packed row has two numbers in a byte, the first in the low bits. The last byte of an odd row has
// zeros in its high bits.
constexpr BARAQUANT_HD int64_t packed_size(int64_t elements) { return (elements + 1) / 2; }

// A byte from two integers of -8 .. 7.
BARAQUANT_HD uint8_t packed_pair(int low, int high) {
  return static_cast<uint8_t>(((low + kMiddle) & kLargest) | ((high + kMiddle) & kLargest) << 4);
}

// A packed weight [rows, columns]; a group has group_size (even) columns, the last one of a row the
// rest.
struct Packed {
  const uint8_t* values = nullptr;      // [rows, packed_size(columns)]
  const uint8_t* factor = nullptr;      // [rows, groups()]
  const uint8_t* zero_point = nullptr;  // the same, or null: kMiddle
  int64_t columns = 0, group_size = 2;

  BARAQUANT_HD int64_t groups() const { return divide_up(columns, group_size); }
  BARAQUANT_HD Group group(int64_t i) const {
    return {factor[i], zero_point ? zero_point[i] : static_cast<uint8_t>(kMiddle)};
  }
  BARAQUANT_HD Group group(int64_t row, int64_t g) const { return group(row * groups() + g); }
  BARAQUANT_HD const uint8_t* row(int64_t row) const { return values + row * packed_size(columns); }
};

}  // namespace baraquant::int4
