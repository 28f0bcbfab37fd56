// SPDX-License-Identifier: BSD-3-Clause
// The activations of the fused family, from additions, multiplications, fused multiply-adds and one
// division, each rounded correctly. So every device and instruction set gives the same bits, which
// no library's exp or erf promises. Without torch.
//   silu(x)       x * sigmoid(x)
//   gelu(x)       x * Phi(x), Phi the distribution function of the normal distribution
//   gelu_tanh(x)  0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//                 = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
// They are at most 2 ulp from the exact value, and gelu at most 5 for x < -1, where the terms of
// its polynomials round one after the other. tests/fused/test_accuracy.py compares. GELU: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
//
// Note [exp by halves]
// Every exp here has an argument t <= 0. With k = rint(t / ln 2) it is 2^k p, p = exp(t - k ln 2)
// in [0.7, 1.42]. The power is multiplied in last and in two halves, since 2^k alone may be below
// the least float when the result is not. t is at least -kFar, beyond which x * exp(-kFar) rounds
// to 0 for every |x| <= kFar; x is limited likewise. A NaN passes through.
#pragma once

#include <cmath>
#include <cstdint>

#include "machine/float_types.h"
#include "machine/host_device.h"

namespace baraquant::fused {

BARAQUANT_HD float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

constexpr float kFar = 112.0f;

BARAQUANT_HD float magnitude(float x) {
  return bit_cast<float>(bit_cast<uint32_t>(x) & 0x7fffffffu);
}

// NB: a NaN passes through.
BARAQUANT_HD float at_least(float x, float least) { return x < least ? least : x; }

// The unevaluated sum of a number and a small rest.
struct Sum {
  float main, rest;
};

// numerator / denominator, to within 0.6 ulp. The one division is of 1.
BARAQUANT_HD float divide(Sum numerator, Sum denominator) {
#if defined(__CUDA_ARCH__)
  const float reciprocal = __frcp_rn(denominator.main);
#else
  const float reciprocal = 1.0f / denominator.main;
#endif
  const float q = numerator.main * reciprocal;
  const float left = multiply_add(-q, denominator.main, numerator.main) +
                     multiply_add(-q, denominator.rest, numerator.rest);
  return multiply_add(left, reciprocal, q);
}

BARAQUANT_HD Sum product(float x, Sum y) {
  const float main = x * y.main;
  return {main, multiply_add(x, y.rest, multiply_add(x, y.main, -main))};
}

// x * y + z.
BARAQUANT_HD Sum product_plus(float x, float y, float z) {
  const float xy = x * y, main = z + xy, part = main - z;
  const float rest = (z - (main - part)) + (xy - part);  // exactly z + xy - main
  return {main, rest + multiply_add(x, y, -xy)};
}

// significand * 2^k, with 2^k in two factors.
struct Power {
  Sum significand;
  float half, other_half;
  BARAQUANT_HD float times_scale(float x) const { return x * half * other_half; }
};

// exp(t + rest) for -kFar <= t <= 0 and a small rest. On |r| <= 0.35 the polynomial is within
// 2^-27.7 of exp(r).
BARAQUANT_HD Power exp_of(float t, float rest) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: the low bits of t / ln 2 + kRounder are k
  const float shifted = multiply_add(t, 0x1.715476p+0f, kRounder);
  const float k = shifted - kRounder;
  float r = multiply_add(k, -0x1.62e430p-1f, t);
  r = multiply_add(k, 0x1.05c610p-29f, r) + rest;
  float p = multiply_add(r, 0x1.6a233cp-10f, 0x1.123a78p-7f);
  p = multiply_add(r, p, 0x1.5558f6p-5f);
  p = multiply_add(r, p, 0x1.555490p-3f);
  p = multiply_add(r, p, 0x1.fffffcp-2f);
  p = multiply_add(r * r, p, r);
  const float sum = 1.0f + p;
  const uint32_t number = bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(kRounder);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(number) >> 1);
  return {{sum, p - (sum - 1.0f)},
          bit_cast<float>((half + 127u) << 23),
          bit_cast<float>((number - half + 127u) << 23)};
}

// x * sigmoid(w + rest) for an x of w's sign with |x| <= |w| or |w| < kFar.
BARAQUANT_HD float times_sigmoid(float x, float w, float rest) {
  const bool negative = w < 0.0f;
  const float t = at_least(negative ? w : -w, -kFar);
  const Power e = exp_of(t, negative ? rest : -rest);
  const float power = e.times_scale(e.significand.main);
  const float one_more = 1.0f + power;
  const Sum denominator{one_more, (power - (one_more - 1.0f)) + e.times_scale(e.significand.rest)};
  const float limited = at_least(x, -kFar);
  const Sum numerator = negative ? product(limited, e.significand) : Sum{1.0f, 0.0f};
  const float quotient = divide(numerator, denominator);
  return negative ? e.times_scale(quotient) : x * quotient;
}

BARAQUANT_HD float silu(float x) { return times_sigmoid(x, x, 0.0f); }

// The argument w = x (a + b x^2) is computed to twice the precision, because its error is the
// relative error of a small result.
BARAQUANT_HD float gelu_tanh(float x) {
  constexpr float kA = 0x1.988454p+0f, kARest = -0x1.857936p-25f;  // 2 sqrt(2 / pi)
  constexpr float kB = 0x1.2444f2p-4f, kBRest = 0x1.49b16ap-29f;   // that * 0.044715
  const float limited = x > 16.0f ? 16.0f : at_least(x, -16.0f);   // beyond, the result is x or -0
  const float s = limited * limited, s_rest = multiply_add(limited, limited, -s);
  const float b = kB * s, b_rest = multiply_add(kB, s, -b);
  const float q = kA + b, part = q - kA;
  const float sum_rest = (kA - (q - part)) + (b - part);
  const float q_rest =
      sum_rest + multiply_add(kB, s_rest, b_rest) + multiply_add(kBRest, s, kARest);
  const Sum w = product(limited, {q, q_rest});
  return times_sigmoid(x, w.main, w.rest);
}

// NB: 14.5 * Phi(-14.5) rounds to 0.
// Phi(-a) = exp(-a^2 / 2) R(a), R a quotient of polynomials with positive coefficients, within
// 2^-27 on [0, 14.5]. Its coefficients come from a weighted least squares fit that evens out the
// relative error.
BARAQUANT_HD float gelu(float x) {
  const float limited = x > 14.5f ? 14.5f : at_least(x, -14.5f);  // beyond, the result is x or -0
  const float a = magnitude(limited);
  const float s = a * a, s_rest = multiply_add(a, a, -s);
  const Power e = exp_of(-0.5f * s, -0.5f * s_rest);
  float p = multiply_add(a, 0x1.0dc640p-8f, 0x1.4cdfb2p-5f);
  p = multiply_add(a, p, 0x1.77452ap-3f);
  p = multiply_add(a, p, 0x1.c0d128p-2f);
  float q = multiply_add(a, 0x1.521bb0p-7f, 0x1.a138ccp-4f);
  q = multiply_add(a, q, 0x1.e0be78p-2f);
  q = multiply_add(a, q, 0x1.33d7d8p+0f);
  q = multiply_add(a, q, 0x1.acaac4p+0f);
  const Sum numerator = product_plus(a, p, 0.5f);
  const Sum power = product(a, e.significand);
  const Sum tail = product(power.main, numerator);
  const float scaled = e.times_scale(divide(
      {tail.main, multiply_add(power.rest, numerator.main, tail.rest)}, product_plus(a, q, 1.0f)));
  return x < 0.0f ? -scaled : x - scaled;
}

}  // namespace baraquant::fused
