// SPDX-License-Identifier: BSD-3-Clause
// The activations of the fused family, from additions, multiplications, fused multiply-adds and one
// division, each rounded correctly. So every device and instruction set gives the same bits, which
// no library's exp or erf promises. Without torch.
//   silu(x)       x * sigmoid(x)
//   gelu(x)       x * Phi(x), Phi the distribution function of the normal distribution
//   gelu_tanh(x)  0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//                 = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
// For float they are at most 2 ulp from the exact value, and gelu at most 5 for x < -1, where the
// terms of its polynomials round one after the other. Rows of 16-bit numbers have shorter forms
// (Note [Activations of 16-bit numbers]). tests/fused/test_accuracy.py compares both. GELU:
// Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
//
// Note [exp by halves]
// Every exp here has an argument t <= 0. With k = rint(t / ln 2) it is 2^k p, p = exp(t - k ln 2)
// in [0.7, 1.42]. The power is multiplied in last and in two halves, since 2^k alone may be below
// the least float when the result is not. t is at least -kFar, beyond which x * exp(-kFar) rounds
// to 0 for every |x| <= kFar; x is limited likewise. A NaN passes through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/float_types.h"
#include "machine/host_device_math.h"

namespace baraquant::fused {

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
  const float reciprocal = reciprocal_of(denominator.main);
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

// Note [Activations of 16-bit numbers]
// The result is rounded to 16 bits, so that the float before it may be up to 2^-16 from the exact
// value (2^-17 for Float16). Of the 65536 arguments a few, which lie next to a tie, are then not
// rounded correctly. Let a = |x|, limited to where the result for -a rounds to 0. Then
//   f(x) = max(x, -0) - a g(a)   with g(a) = Phi(-a), or sigmoid(-w) for the w that belongs to a
// for either sign of x, without a branch. g(a) contains the power 2^k, which can be below the least
// float when the result is not. So it is kept 2^64 times too large until the last step, which
// rounds once. A NaN passes through max(x, -0).
namespace brief {

constexpr float kLess = 0x1p-64f;

template <typename... More>
BARAQUANT_HD float polynomial(float x, float constant, More... more) {
  if constexpr (sizeof...(more) == 0) {
    return constant;
  } else {
    return multiply_add(x, polynomial(x, more...), constant);
  }
}

// |x|, at most `most`, which also stands for a NaN.
BARAQUANT_HD float limited_magnitude(float x, float most) {
#if defined(__CUDA_ARCH__)
  return fminf(fabsf(x), most);
#else
  const float a = magnitude(x);
  return a < most ? a : most;
#endif
}

// max(x, -0). A NaN passes through.
BARAQUANT_HD float positive_part(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-0.0f));  // +0 is more than -0 (PTX ISA, max)
  return x;
#else
  return x < 0.0f ? -0.0f : x;
#endif
}

// 2^(a h + 64) for -180 <= a h <= 0, within 2^-18.4; exactly 2^64 for a = 0. The low bits of
// `shifted` are k + 64, which go into the exponent.
BARAQUANT_HD float power(float a, float h) {
  constexpr float kRounder = 12582912.0f + 64.0f;  // 1.5 * 2^23 + 64
  const float shifted = multiply_add(a, h, kRounder);
  const float k = shifted - kRounder;
  const float r = multiply_add(a, h, -k);
  const float p =
      polynomial(r, 1.0f, 0x1.62e12cp-1f, 0x1.ec0378p-3f, 0x1.c9fc46p-5f, 0x1.3a02ccp-7f);
  return bit_cast<float>(bit_cast<uint32_t>(p) + (bit_cast<uint32_t>(shifted) << 23));
}

// x * sigmoid(w) for the w of x's sign with exp(-|w|) = 2^(a h). 1 / d for d in [1, 2] comes from a
// polynomial, exact at 2, and a step that turns its relative error e, at most 2^-6.4, into e^3.
BARAQUANT_HD float times_sigmoid(float x, float a, float h) {
  const float e = power(a, h);
  const float d = multiply_add(e, kLess, 1.0f);
  const float y = polynomial(d, 0x1.0acp+1f, -0x1.664p+0f, 0x1.37p-2f);
  const float left = multiply_add(-d, y, 1.0f);
  const float tail = a * e * y;
  return multiply_add(multiply_add(tail, multiply_add(left, left, left), tail), -kLess,
                      positive_part(x));
}

BARAQUANT_HD float silu(float x) {
  return times_sigmoid(x, limited_magnitude(x, kFar), -0x1.715476p+0f);  // -1 / ln 2
}

BARAQUANT_HD float gelu_tanh(float x) {
  const float a = limited_magnitude(x, 10.6f);
  // -2 sqrt(2 / pi) / ln 2, and that * 0.044715.
  return times_sigmoid(x, a, polynomial(a * a, -0x1.26aec2p+1f, -0x1.a5a7d0p-4f));
}

// 2 Phi(-a) = 2^(a h), h a polynomial that fits log2(2 Phi(-a)) to 2^-17.5 for Float16 and 2^-16
// for BFloat16, whose exponents reach further. Each coefficient was rounded before the lower ones
// were fitted.
template <typename T>
BARAQUANT_HD float gelu(float x) {
  float a, h;
  if constexpr (std::is_same_v<T, Float16>) {
    a = limited_magnitude(x, 5.75f);
    h = polynomial(a, -0x1.26b5e8p+0f, -0x1.d58d78p-2f, -0x1.b96776p-5f, 0x1.159638p-7f,
                   -0x1.e31560p-11f, 0x1.fb1ea8p-15f, -0x1.dd334ep-20f);
  } else {
    a = limited_magnitude(x, 13.6f);
    h = polynomial(a, -0x1.26bf32p+0f, -0x1.d4ee70p-2f, -0x1.c0704cp-5f, 0x1.284b48p-7f,
                   -0x1.26f888p-10f, 0x1.a955dcp-14f, -0x1.a9b1d4p-18f, 0x1.16161cp-22f,
                   -0x1.a7b522p-28f, 0x1.1bd63cp-34f);
  }
  return multiply_add(a * power(a, h), -0.5f * kLess, positive_part(x));
}

}  // namespace brief

// The activations of rows of T.
template <typename T>
BARAQUANT_HD float silu_for(float x) {
  if constexpr (sizeof(T) == 2) {
    return brief::silu(x);
  } else {
    return silu(x);
  }
}
template <typename T>
BARAQUANT_HD float gelu_for(float x) {
  if constexpr (sizeof(T) == 2) {
    return brief::gelu<T>(x);
  } else {
    return gelu(x);
  }
}
template <typename T>
BARAQUANT_HD float gelu_tanh_for(float x) {
  if constexpr (sizeof(T) == 2) {
    return brief::gelu_tanh(x);
  } else {
    return gelu_tanh(x);
  }
}

}  // namespace baraquant::fused
