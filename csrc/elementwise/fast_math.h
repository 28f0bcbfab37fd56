// SPDX-License-Identifier: BSD-3-Clause
// A grid is the integers of one scale, zero point and range; a kernel prepares it once and uses it
// for many elements. Grid computes what elementwise/math.h defines. FastGrid gives the same bits in
// float with fewer instructions, for the scales and zero points that it accepts. A kernel asks
// FastGrid::accepts once for a scale.
//
// Note [Why FastGrid gives the same bits]
// Let lo = quant_min - z and hi = quant_max - z, integers of at most 2^21 in magnitude, and s in
// [2^-64, 2^64]. Every v in the range is r + z with r = rint(x / s) in [lo, hi], all exact.
// 1. First x is limited to [RN(s * lo), RN(s * hi)]. The quotient of such a limit is within 2^-3 of
//    lo or hi, so it rounds to lo or hi, and so does every x beyond the limit after the clamp. If
//    the kernel must know whether x was inside, the limits are s * (lo - 1) and s * (hi + 1), which
//    round to just outside.
// 2. With y = RN(1 / s) and z = RN(fma(-s, y, 1) * y), whose sum is 1 / s but for 2^-46 of it,
//    q = fma(x, y, RN(x * z)) is within 1 ulp of x / s. Then the residual fma(-s, q, x) is exact,
//    and by Markstein's theorem (1990; also Muller et al., Handbook of Floating-Point Arithmetic,
//    4.7) fma(fma(-s, q, x), y, q) is x / s, rounded once. No step overflows. While |x| >= 2^-66
//    nothing underflows but x * z, if |x / s| < 2^-78, of which rint is 0. slope(), where the
//    quotient itself matters, has |x| >= 2^-60, so |x / s| >= 2^-124, of whose ulp that error is an
//    eighth. For smaller x, |x / s| < 1/4, and so is |q|, and rint gives 0.
// 3. rint(t) for |t| <= 2^22 is (t + 1.5 * 2^23) - 1.5 * 2^23, because the sum has a unit of 1. It
//    gives +0 for -0, as adding a zero point does. The sum's low bits are the integer.
//
// Note [Numbers that gave the scale]
// OwnGrid is for a scale and a zero point that were computed from a range of the data
// (range/math.h) which contains x, and that FastGrid accepts. Then no x is a NaN or infinite, since
// the scale is neither. Let u = 2^-24, and let n <= 2^21 be the number of steps.
// 4. Symmetric: s = RN(amax / n) and |x| <= amax, so |x / s| <= n / (1 - u) < n + 1/4. Rounding is
//    monotonic, so |r| <= n, and v lies in [z - n, z + n]. As n = quant_max - z and
//    z = floor((quant_min + quant_max + 1) / 2), that interval lies in the range.
// 5. Asymmetric: r >= rint(xmin / s), and z = quant_min - rint(xmin / s) without a clamp, since
//    s >= RN(|xmin| / n) (1 - u) and so |xmin / s| < n + 1/2. So v >= quant_min. v can exceed
//    quant_max by one, if both ends are rounded away from 0. |r| <= n + 1, so 3. holds.
// 6. OwnGrid<false> also serves symmetric scales: by 4. its limit changes nothing.
#pragma once

#include <type_traits>

#include "elementwise/math.h"
#include "machine/float_types.h"

namespace baraquant::affine {

template <typename C>
class Grid {
 public:
  Grid() = default;  // must be assigned before use
  BARAQUANT_HD Grid(C scale, C zero_point, QuantRange<C> range)
      : scale_(scale), zero_point_(zero_point), range_(range) {}

  BARAQUANT_HD static bool accepts(C, C) { return true; }
  BARAQUANT_HD static bool is_tiny(C) { return false; }
  BARAQUANT_HD C scale() const { return scale_; }
  BARAQUANT_HD C zero_point() const { return zero_point_; }

  BARAQUANT_HD bool is_inside(C x) const { return affine::is_inside(position(x), range_); }
  BARAQUANT_HD C fake_quantize(C x) const {
    return fake_quantized_value(position(x), scale_, zero_point_, range_);
  }
  BARAQUANT_HD C quantize(C x) const { return quantized_value(position(x), zero_point_, range_); }
  // The low 8 bits of q, which serve int8 and uint8.
  BARAQUANT_HD uint8_t quantize_byte(C x) const {
    return static_cast<uint8_t>(static_cast<int32_t>(quantize(x)));
  }
  // These two also report whether x was inside.
  BARAQUANT_HD C fake_quantize(C x, bool& inside) const {
    inside = is_inside(x);
    return fake_quantize(x);
  }
  BARAQUANT_HD C quantize(C x, bool& inside) const {
    inside = is_inside(x);
    return quantize(x);
  }
  BARAQUANT_HD C dequantize(C q) const { return dequantized_value(q, scale_, zero_point_); }
  // d y / d s, still without the factor dy. It is undefined unless v is `valid`, that is no NaN.
  // NB: two results beside it, because the compiler turns no loop over a struct with bools into
  // vectors; nor one over is_inside(v), of which q == v says as much.
  BARAQUANT_HD C slope(C x, bool& inside, bool& valid) const {
    const C ratio = x / scale_, rounded = round_half_even(ratio), v = rounded + zero_point_;
    const C q = clamp(v, range_);
    inside = q == v;
    valid = v == v;
    return inside ? rounded - ratio : q - zero_point_;
  }

 private:
  BARAQUANT_HD C position(C x) const { return grid_position(x, scale_, zero_point_); }

  C scale_, zero_point_;
  QuantRange<C> range_;
};

// Limits x to [lowest, highest]; a NaN passes through.
BARAQUANT_HD float limit(float x, float lowest, float highest) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(lowest));
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(highest));
  return x;
#else
  return clamp(x, QuantRange<float>{lowest, highest});
#endif
}

class FastGrid {
 public:
  FastGrid() = default;  // must be assigned before use
  // A kernel asks accepts_range once for a launch and accepts once for a scale.
  BARAQUANT_HD static bool accepts_range(QuantRange<float> range) {
    return range.min >= -kMax && range.max <= kMax;
  }
  BARAQUANT_HD static bool accepts(float scale, float zero_point) {
    return scale >= 0x1p-64f && scale <= 0x1p64f && fabsf(zero_point) <= kMax;
  }

  BARAQUANT_HD FastGrid(float scale, float zero_point, QuantRange<float> range)
      : scale_(scale),
        reciprocal_(reciprocal_of(scale)),
        reciprocal_rest_(fmaf(-scale, reciprocal_, 1.0f) * reciprocal_),
        zero_point_(zero_point),
        lowest_(range.min - zero_point),
        highest_(range.max - zero_point) {}

  // Whether 0 < |x| < 2^-60: only the first few bits of such a quotient are exact.
  BARAQUANT_HD static bool is_tiny(float x) {
    return bit_cast<uint32_t>(fabsf(x)) - 1u < bit_cast<uint32_t>(0x1p-60f) - 1u;
  }

  BARAQUANT_HD float scale() const { return scale_; }
  BARAQUANT_HD float zero_point() const { return zero_point_; }

  BARAQUANT_HD bool is_inside(float x) const { return is_inside_rounded(rounded(widely(x))); }
  BARAQUANT_HD float fake_quantize(float x) const { return rounded(tightly(x)) * scale_; }
  BARAQUANT_HD float quantize(float x) const { return rounded(tightly(number(x))) + zero_point_; }
  BARAQUANT_HD uint8_t quantize_byte(float x) const {
    const float sum = quotient(tightly(number(x))) + kRounder;
    return static_cast<uint8_t>(bit_cast<uint32_t>(sum) +
                                static_cast<uint32_t>(static_cast<int32_t>(zero_point_)));
  }
  BARAQUANT_HD float fake_quantize(float x, bool& inside) const {
    const float r = rounded(widely(x));
    const float q = limit(r, lowest_, highest_);
    inside = q == r;  // NB: false for a NaN
    return q * scale_;
  }
  BARAQUANT_HD float quantize(float x, bool& inside) const {
    const float r = rounded(widely(x));
    const float q = limit(number(r), lowest_, highest_);
    inside = q == r;  // NB: false for a NaN
    return q + zero_point_;
  }
  BARAQUANT_HD float dequantize(float q) const { return dequantized_value(q, scale_, zero_point_); }
  // NB: not for an x that is_tiny(), because here the quotient itself matters.
  BARAQUANT_HD float slope(float x, bool& inside, bool& valid) const {
    const float ratio = quotient(widely(x));
    const float r = round_quotient(ratio);
    const float q = limit(r, lowest_, highest_);
    inside = q == r;  // NB: false for a NaN
    valid = x == x;
    return q - (inside ? ratio : 0.0f);
  }

 protected:
  static constexpr float kMax = 1 << 20;
  static constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

  // Replaces a NaN by 0, which gives the zero point clamped to the range, as a NaN must.
  BARAQUANT_HD static float number(float x) { return x == x ? x : 0.0f; }
  BARAQUANT_HD float tightly(float x) const {
    return limit(x, scale_ * lowest_, scale_ * highest_);
  }
  BARAQUANT_HD float widely(float x) const {
    return limit(x, scale_ * (lowest_ - 1.0f), scale_ * (highest_ + 1.0f));
  }
  BARAQUANT_HD float quotient(float x) const {
    const float q = fmaf(x, reciprocal_, x * reciprocal_rest_);
    return fmaf(fmaf(-scale_, q, x), reciprocal_, q);
  }
  BARAQUANT_HD static float round_quotient(float quotient) {
    return (quotient + kRounder) - kRounder;
  }
  BARAQUANT_HD float rounded(float x) const { return round_quotient(quotient(x)); }
  // NB: a NaN is outside.
  BARAQUANT_HD bool is_inside_rounded(float r) const { return r >= lowest_ && r <= highest_; }

  float scale_, reciprocal_, reciprocal_rest_, zero_point_, lowest_, highest_;
};

// The gradient of the scale for numbers that are neither a NaN nor is_tiny() (packed_math.h).
class PlainGrid : public FastGrid {
 public:
  using FastGrid::FastGrid;

  BARAQUANT_HD float slope(float x, bool& inside, bool& valid) const {
    const float slope = FastGrid::slope(x, inside, valid);
    valid = true;
    return slope;
  }
};

// For x within the range that the scale was computed from (Note [Numbers that gave the scale]): the
// same bits with fewer instructions.
template <bool symmetric>
class OwnGrid : public FastGrid {
 public:
  using FastGrid::FastGrid;

  BARAQUANT_HD float fake_quantize(float x) const { return at_most(rounded(x), highest_) * scale_; }
  BARAQUANT_HD float quantize(float x) const { return at_most(rounded(x), highest_) + zero_point_; }
  // NB: adds the zero point in floating point, which a GPU does at twice the rate of integers.
  BARAQUANT_HD uint8_t quantize_byte(float x) const {
    const float sum = at_most(quotient(x) + kRounder, kRounder + highest_) + zero_point_;
    return static_cast<uint8_t>(bit_cast<uint32_t>(sum));
  }
  BARAQUANT_HD float fake_quantize(float x, bool& inside) const {
    const float r = rounded(x);
    inside = symmetric || r <= highest_;
    return at_most(r, highest_) * scale_;
  }
  BARAQUANT_HD float quantize(float x, bool& inside) const {
    const float r = rounded(x);
    inside = symmetric || r <= highest_;
    return at_most(r, highest_) + zero_point_;
  }

 private:
  BARAQUANT_HD static float at_most(float x, float most) {
    if constexpr (symmetric) return x;
    return fminf(x, most);
  }
};

// OwnGrid<true> for an even zero point z: rint(t) + z is the low bits of t + (kRounder + z). The
// number in parentheses is an even integer, so that the addition rounds a tie as rint does, and by
// the bounds of Note [Numbers that gave the scale] the sum has a unit of 1.
class EvenGrid : public OwnGrid<true> {
 public:
  BARAQUANT_HD EvenGrid(float scale, float zero_point, QuantRange<float> range)
      : OwnGrid<true>(scale, zero_point, range), rounder_(kRounder + zero_point) {}

  // A word whose low byte is the integer: nothing clears the others.
  BARAQUANT_HD uint32_t quantize_byte(float x) const {
    return bit_cast<uint32_t>(quotient(x) + rounder_);
  }

 private:
  float rounder_;
};

// The fastest kind of grid for a compute type. fastest_accepts_range says if a range allows it.
template <typename C>
using FastestGrid = std::conditional_t<std::is_same_v<C, float>, FastGrid, Grid<C>>;
// The same for packs that are_plain() (packed_math.h).
template <typename C>
using FastestPlainGrid = std::conditional_t<std::is_same_v<C, float>, PlainGrid, Grid<C>>;
// The same for x within the range that the scale was computed from.
template <typename C, bool symmetric>
using FastestOwnGrid = std::conditional_t<std::is_same_v<C, float>, OwnGrid<symmetric>, Grid<C>>;

template <typename C>
BARAQUANT_HD bool fastest_accepts_range(QuantRange<C> range) {
  if constexpr (std::is_same_v<C, float>) {
    return FastGrid::accepts_range(range);
  } else {
    return true;
  }
}

}  // namespace baraquant::affine
