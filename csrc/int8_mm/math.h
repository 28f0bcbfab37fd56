// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of the integer matrix product, without torch. Every kernel calls these functions.
//   acc[m, n] = sum over k of (a[m, k] - za[m]) * w[n, k]
//             = sum over k of a[m, k] * w[n, k]  -  za[m] * sum over k of w[n, k]
//   y[m, n]   = fma(C(acc) * sw[n], sa[m], bias[n]), then one rounding to the output's dtype
// acc is exact in int32 for a depth k up to the limits below. C is float or double. Scheme: Jacob
// et al. 2018, "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference", section 2.3.
#pragma once

#include <cstdint>

#include "machine/host_device_math.h"

namespace baraquant::int8_mm {

// The greatest depths whose sums fit in int32. An int8 input without a zero point has
// |a * w| <= 2^14; otherwise |a - za| < 2^8, so |(a - za) * w| < 2^15.
constexpr int64_t kMaxDepth = 131071, kMaxShiftedDepth = 65536;

// The most rows of a grouped product: the ends of its groups are int32.
constexpr int64_t kMaxGroupedRows = INT32_MAX;

// Stands in for a missing bias: x + -0.0 is x for every x, including +0.0, so the fused
// multiply-add is the product, rounded once.
template <typename C>
constexpr C kNoBias = C(-0.0);

// From the sum of a * w to the sum of (a - za) * w. NB: in unsigned numbers, which wrap: only the
// result has to fit in int32, and sums of the weight that are given may be wrong.
BARAQUANT_HD int32_t shift(int32_t products, int32_t zero_point, int32_t weight_sum) {
  return static_cast<int32_t>(static_cast<uint32_t>(products) -
                              static_cast<uint32_t>(zero_point) *
                                  static_cast<uint32_t>(weight_sum));
}

template <typename C>
BARAQUANT_HD C rescale(int32_t acc, C weight_scale, C input_scale, C bias) {
  return multiply_add(static_cast<C>(acc) * weight_scale, input_scale, bias);
}

}  // namespace baraquant::int8_mm
