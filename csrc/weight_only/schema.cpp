// SPDX-License-Identifier: BSD-3-Clause
// The product of a floating input and a weight of integers: schema.
//   weight_only_linear   y = T(sum over k of x[t, k] * w^[n, k] + bias[n])
//                        w^ = T((q - z) * s), as dequantize_per_channel and dequantize_per_group
//                        give it, in the dtype T of the input
// The arguments:
//   input              [..., K] of T, any strides
//   weight             q, contiguous: int8 [N, K], or of four bits, uint8 [N, ceil(K / 2)] as
//                      pack_int4 gives it (int4/schema.cpp)
//   weight_scale       of the compute type C of T: [N], or [N, ceil(K / group_size)]
//   bias               [N] of T
//   weight_zero_point  of an integer dtype, shaped like weight_scale; None means 0
//   group_size         the columns of a group; the last group may have fewer. None: whole rows
// The sums are computed in C, in an order that depends on the sizes and the device: the same call
// gives the same bits, another device other last bits. Outputs are contiguous.
#include "granularity/public_op.h"
#include "weight_only/core_ops.h"

namespace baraquant::weight_only {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m,
         "weight_only_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None, "
         "*, Tensor? weight_zero_point=None, SymInt? group_size=None) -> Tensor");
}

}  // namespace baraquant::weight_only
