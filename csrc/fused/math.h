// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of the fused family, without torch: norms of rows, and the order of their sums.
// Every kernel calls these functions.
//   rms_norm    y = (x * r) * w                r = 1 / sqrt(mean(x^2) + eps)
//   layer_norm  y = ((x - m) * r) * w + b      m = mean(x), r = 1 / sqrt(mean((x - m)^2) + eps)
// C is float or double. Every step rounds by itself. RMSNorm: Zhang and Sennrich 2019, "Root Mean
// Square Layer Normalization"; LayerNorm: Ba, Kiros and Hinton 2016, "Layer Normalization".
//
// Note [Order of the sums of a row]
// What is summed is widened to double (the square of a float is exact there). The elements of a row
// are numbered j = 0, 1, ... With `lanes` = lanes_of(length), lane l adds the elements j = l,
// l + lanes, l + 2 lanes, ... in turn; then neighbouring lanes are added in pairs until one is
// left. A missing element is +0. The order depends on the length alone, so every device and every
// number of threads gives the same bits: a thread holds neighbouring lanes.
#pragma once

#include <cstdint>

#include "machine/host_device_math.h"
#include "machine/integers.h"

namespace baraquant::fused {

constexpr int kMaxLanesLog2 = 12;
constexpr int kMaxLanes = 1 << kMaxLanesLog2;

// The base-2 logarithm of the number of lanes.
BARAQUANT_HD int lanes_log2(int64_t length) { return log2_up(length, kMaxLanesLog2); }

// What a row is shifted and scaled by.
template <typename C>
struct Moments {
  C mean, reciprocal;
};

// The summands, for a row's element x.
template <typename C>
BARAQUANT_HD double widened(C x) {
  return static_cast<double>(x);
}
template <typename C>
BARAQUANT_HD double squared(C x, C mean) {
  const double d = static_cast<double>(x - mean);
  return d * d;
}

// sum + x^2. NB: a GPU fuses the two for a float, whose square is exact, so that the bits are the
// same.
template <typename C>
BARAQUANT_HD double plus_square(double sum, C x) {
  const double d = static_cast<double>(x);
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(C) == 4) return __fma_rn(d, d, sum);
#endif
  return sum + d * d;
}

// Divides before it rounds to C, whose range a sum of finite numbers may leave. NB: adds +0, which
// turns a sum of -0 into +0: devices differ in how they start a sum.
template <typename C>
BARAQUANT_HD C mean_of(double sum, int64_t length) {
  return static_cast<C>((sum + 0.0) / static_cast<double>(length));
}

// NB: where C does not hold the mean square of finite numbers, the reciprocal is 0. Then the mean
// counts as 0, since the difference of an element and the mean may be infinite, and 0 times that is
// NaN. A row with an infinity has a NaN difference, and so keeps its NaN.
template <typename C>
BARAQUANT_HD Moments<C> moments(C mean, double sum_of_squares, int64_t length, C eps) {
  const C reciprocal = C(1) / square_root(mean_of<C>(sum_of_squares, length) + eps);
  return {reciprocal == C(0) ? C(0) : mean, reciprocal};
}

template <typename C>
BARAQUANT_HD C normalized(C x, const Moments<C>& m) {
  return (x - m.mean) * m.reciprocal;
}

}  // namespace baraquant::fused
