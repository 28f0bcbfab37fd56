// SPDX-License-Identifier: BSD-3-Clause
// Functions of numbers that are an instruction or a call on either side, host and device, with the
// same bits: the result is rounded once.
//   round_half_even  to an integer, half to even
//   round_down       to an integer
//   square_root, reciprocal_of
//   multiply_add     a * b + c
#pragma once

#include <cmath>

#include "machine/host_device.h"

namespace baraquant {

#if defined(__CUDA_ARCH__)
BARAQUANT_HD float round_half_even(float x) { return rintf(x); }
BARAQUANT_HD double round_half_even(double x) { return rint(x); }
BARAQUANT_HD float round_down(float x) { return floorf(x); }
BARAQUANT_HD double round_down(double x) { return floor(x); }
BARAQUANT_HD float square_root(float x) { return __fsqrt_rn(x); }
BARAQUANT_HD double square_root(double x) { return __dsqrt_rn(x); }
BARAQUANT_HD float reciprocal_of(float x) { return __frcp_rn(x); }
BARAQUANT_HD float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
BARAQUANT_HD double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
BARAQUANT_HD float round_half_even(float x) { return __builtin_rintf(x); }
BARAQUANT_HD double round_half_even(double x) { return __builtin_rint(x); }
BARAQUANT_HD float round_down(float x) { return __builtin_floorf(x); }
BARAQUANT_HD double round_down(double x) { return __builtin_floor(x); }
BARAQUANT_HD float square_root(float x) { return __builtin_sqrtf(x); }
BARAQUANT_HD double square_root(double x) { return __builtin_sqrt(x); }
BARAQUANT_HD float reciprocal_of(float x) { return 1.0f / x; }
BARAQUANT_HD float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
BARAQUANT_HD double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif

}  // namespace baraquant
