// SPDX-License-Identifier: BSD-3-Clause
// One scale's grid, as a kernel uses it for many elements. Grid says what the contract (affine.h)
// says; FastGrid gives the same bits in float with fewer instructions, for the scales and zero
// points that it accepts. A kernel asks FastGrid::accepts once for a scale.
//
// Note [Why FastGrid gives the same bits]
// Let lo = quant_min - z and hi = quant_max - z, integers of at most 2^21 in magnitude, and s in
// [2^-64, 2^64]. Every v in the range is r + z with r = rint(x / s) in [lo, hi], all exact.
// 1. x is first limited to [s * (lo - 1), s * (hi + 1)], rounded. A limit's quotient is within
//    2^-3 of lo - 1 or hi + 1, so a limited x still rounds to just outside the range.
// 2. x / s: y = RN(1 / s); q = RN(x * y); twice q = fma(fma(-s, q, x), y, q). The first step brings
// q
//    within 1 ulp of the quotient; then the residual is exact, and by Markstein's theorem (1990;
//    also Muller et al., Handbook of Floating-Point Arithmetic, 4.7) the second rounds correctly.
//    No step over- or underflows while |x| >= 2^-66; below that |x / s| < 1/4, q is too, and rint
//    gives 0.
// 3. rint(t) for |t| <= 2^22 is (t + 1.5 * 2^23) - 1.5 * 2^23: the sum has a unit of 1. It gives +0
//    for -0, as adding a zero point does. The sum's low bits are the integer.
#pragma once

#include <type_traits>

#include "affine/affine.h"
#include "float_types.h"

namespace baraquant::affine {

template <typename C>
class Grid {
 public:
  BARAQUANT_HD Grid(C scale, C zero_point, QuantRange<C> range)
      : scale_(scale), zero_point_(zero_point), range_(range) {}

  BARAQUANT_HD static bool accepts(C, C, QuantRange<C>) { return true; }
  BARAQUANT_HD C scale() const { return scale_; }
  BARAQUANT_HD C zero_point() const { return zero_point_; }
  BARAQUANT_HD bool is_inside(C x) const { return affine::is_inside(position(x), range_); }
  BARAQUANT_HD C fake_quantize(C x) const {
    return affine::fake_quantize(position(x), scale_, zero_point_, range_);
  }
  BARAQUANT_HD C quantize(C x) const { return quantized_value(position(x), zero_point_, range_); }
  // The low 8 bits of q, which serve int8 and uint8.
  BARAQUANT_HD uint8_t quantize_byte(C x) const {
    return static_cast<uint8_t>(static_cast<int32_t>(quantize(x)));
  }
  BARAQUANT_HD C dequantize(C q) const { return affine::dequantize(q, scale_, zero_point_); }
  BARAQUANT_HD C scale_gradient(C dy, C x) const {
    return affine::scale_gradient(dy, x, scale_, zero_point_, range_);
  }
  BARAQUANT_HD C zero_point_gradient(C dy, C x) const {
    return affine::zero_point_gradient(dy, position(x), scale_, range_);
  }

 private:
  BARAQUANT_HD C position(C x) const { return grid_position(x, scale_, zero_point_); }

  C scale_, zero_point_;
  QuantRange<C> range_;
};

// Maximum and minimum that let a NaN through.
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
  BARAQUANT_HD static bool accepts(float scale, float zero_point, QuantRange<float> range) {
    constexpr float kMost = 1 << 20;
    return scale >= 0x1p-64f && scale <= 0x1p64f && zero_point >= -kMost && zero_point <= kMost &&
           range.min >= -kMost && range.max <= kMost;
  }

  BARAQUANT_HD FastGrid(float scale, float zero_point, QuantRange<float> range)
      : scale_(scale),
        reciprocal_(1.0f / scale),
        zero_point_(zero_point),
        lowest_(range.min - zero_point),
        highest_(range.max - zero_point),
        x_lowest_(scale * (lowest_ - 1.0f)),
        x_highest_(scale * (highest_ + 1.0f)) {}

  BARAQUANT_HD float scale() const { return scale_; }
  BARAQUANT_HD float zero_point() const { return zero_point_; }
  BARAQUANT_HD bool is_inside(float x) const { return is_inside_rounded(rounded(limited(x))); }
  BARAQUANT_HD float fake_quantize(float x) const {
    return limit(rounded(limited(x)), lowest_, highest_) * scale_;
  }
  BARAQUANT_HD float quantize(float x) const {
    const float number = x == x ? x : 0.0f;  // a NaN gives the zero point clamped to the range
    return limit(rounded(limited(number)), lowest_, highest_) + zero_point_;
  }
  BARAQUANT_HD uint8_t quantize_byte(float x) const {
    const float number = x == x ? x : 0.0f;
    const float sum =
        limit(quotient(limited(number)) + kRounder, lowest_ + kRounder, highest_ + kRounder);
    return static_cast<uint8_t>(bit_cast<uint32_t>(sum) +
                                static_cast<uint32_t>(static_cast<int32_t>(zero_point_)));
  }
  BARAQUANT_HD float dequantize(float q) const {
    return affine::dequantize(q, scale_, zero_point_);
  }
  BARAQUANT_HD float scale_gradient(float dy, float x) const {
    // Here the quotient itself matters, also a tiny one.
    const bool tiny = x < 0x1p-60f && x > -0x1p-60f;
    const float ratio = tiny ? x / scale_ : quotient(limited(x));
    const float r = rounded_quotient(ratio);
    const float slope = is_inside_rounded(r) ? r - ratio : limit(r, lowest_, highest_);
    return x == x ? dy * slope : 0.0f;
  }
  BARAQUANT_HD float zero_point_gradient(float dy, float x) const {
    return is_inside(x) ? 0.0f : -scale_ * dy;
  }

 private:
  static constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

  BARAQUANT_HD float limited(float x) const { return limit(x, x_lowest_, x_highest_); }
  BARAQUANT_HD float quotient(float x) const {
    float q = x * reciprocal_;
    q = fmaf(fmaf(-scale_, q, x), reciprocal_, q);
    return fmaf(fmaf(-scale_, q, x), reciprocal_, q);
  }
  BARAQUANT_HD static float rounded_quotient(float quotient) {
    return (quotient + kRounder) - kRounder;
  }
  BARAQUANT_HD float rounded(float x) const { return rounded_quotient(quotient(x)); }
  // NB: a NaN is outside.
  BARAQUANT_HD bool is_inside_rounded(float r) const { return r >= lowest_ && r <= highest_; }

  float scale_, reciprocal_, zero_point_, lowest_, highest_, x_lowest_, x_highest_;
};

// The fastest kind of grid for a compute type.
template <typename C>
using FastestGrid = std::conditional_t<std::is_same_v<C, float>, FastGrid, Grid<C>>;

}  // namespace baraquant::affine
