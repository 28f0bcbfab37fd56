// SPDX-License-Identifier: BSD-3-Clause
// The op of the convolutions of integers: a product of the integer matrix family (int8_mm/math.h)
// whose rows are the patches of the input under the kernel.
//   int8_conv  y[n, o, p] = acc[n, o, p] * sw[o] * s + b[o]
//              acc[n, o, p] = sum over c, k of (q[n, c, p * stride - padding + k * dilation] - z)
//                             * w[o, c, k]
// Places outside of the input hold q = z, so they add 0. What the arguments are stands in ops.txt. The
// output is [N, OC, *out] or [OC, *out], contiguous, or channels_last if the input is.
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
