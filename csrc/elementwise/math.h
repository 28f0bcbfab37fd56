// SPDX-License-Identifier: BSD-3-Clause
// Affine quantization of one number. Every kernel, mask and gradient of the library calls these
// functions.
//   v = rint(x / s) + z,   q = clamp(v, quant_min, quant_max),   y = (q - z) * s
// Scheme: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference"; straight-through gradient: Bengio et al. 2013; gradient of
// the scale: Esser et al. 2020, "Learned Step Size Quantization"; of the zero point: Bhalgat et al.
// 2020. C is float or double. The code must be built without fast-math and without contraction to
// fused multiply-adds.
#pragma once

#include "machine/host_device_math.h"

namespace baraquant::affine {

template <typename C>
struct QuantRange {
  C min, max;
};

// The unclamped position on the integer grid. The zero point is added after rounding, in floating
// point: an integer addition could wrap. Adding it also turns -0 into +0.
template <typename C>
BARAQUANT_HD C grid_position(C x, C scale, C zero_point) {
  return round_half_even(x / scale) + zero_point;
}

// NB: written as selects so that a NaN passes through.
template <typename C>
BARAQUANT_HD C clamp(C v, QuantRange<C> range) {
  v = v < range.min ? range.min : v;
  return v > range.max ? range.max : v;
}

// NB: a NaN is outside.
template <typename C>
BARAQUANT_HD bool is_inside(C v, QuantRange<C> range) {
  return v >= range.min && v <= range.max;
}

// The integer q, still in C. A NaN position gives the zero point clamped to the range.
template <typename C>
BARAQUANT_HD C quantized_value(C v, C zero_point, QuantRange<C> range) {
  const C q = clamp(v, range);
  return q == q ? q : clamp(zero_point, range);
}

template <typename C>
BARAQUANT_HD C dequantized_value(C q, C scale, C zero_point) {
  return (q - zero_point) * scale;
}

// A NaN position gives NaN.
template <typename C>
BARAQUANT_HD C fake_quantized_value(C v, C scale, C zero_point, QuantRange<C> range) {
  return dequantized_value(clamp(v, range), scale, zero_point);
}

// A floating-point zero point is learned; the forward uses the integer that it stands for.
template <typename C>
BARAQUANT_HD C learned_zero_point(C zero_point, QuantRange<C> range) {
  return clamp(round_half_even(zero_point), range);
}

}  // namespace baraquant::affine
