// SPDX-License-Identifier: BSD-3-Clause
// The op of the convolutions of integers: a product of the integer matrix family (int8_mm/math.h)
// whose rows are the patches of the input under the kernel.
//   int8_conv  y[n, o, p] = acc[n, o, p] * sw[o] * s + b[o]
//              acc[n, o, p] = sum over c, k of (q[n, c, p * stride - padding + k * dilation] - z)
//                             * w[o, c, k]
// Places outside of the input hold q = z, so they add 0. The arguments:
//   input         int8 or uint8 [N, C, *space] or [C, *space], one to three dimensions of space
//   weight        int8 [OC, C / groups, *kernel]; as it lies with channels_last it is not copied
//   input_scale   of the compute type C of the output, one for all ([] or [1])
//   weight_scale  C [OC]
//   bias          [OC], C or the output's dtype
//   input_zero_point
//                 any integer dtype, one for all; within the input's dtype. None means 0
//   weight_sum    int32 [OC], the sums of the weight over all but its first dimension, which a zero
//                 point needs; None: each call computes it
//   stride, padding, dilation
//                 one for all dimensions of space, or one for each
//   dtype         of the output, floating; None: that of the scales
// The output is [N, OC, *out] or [OC, *out], contiguous, or channels_last if the input is.
#include "granularity/public_op.h"
#include "int8_conv/core_ops.h"

namespace baraquant::int8_conv {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m,
         "int8_conv(Tensor input, Tensor weight, Tensor input_scale, Tensor weight_scale, "
         "Tensor? bias=None, *, Tensor? input_zero_point=None, Tensor? weight_sum=None, "
         "int[1] stride=1, int[1] padding=0, int[1] dilation=1, int groups=1, "
         "ScalarType? dtype=None) -> Tensor");
  m.def("_force_patches(bool forced) -> ()", &force_patches);
}

}  // namespace baraquant::int8_conv
