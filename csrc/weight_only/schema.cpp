// SPDX-License-Identifier: BSD-3-Clause
// The product of a floating input and a weight of integers: schema. What it computes, and what its
// arguments are, stands in ops.txt. The sums are computed in the compute type of the input, in an order
// that depends on the sizes and the device: the same call gives the same bits, another device other
// last bits. Outputs are contiguous.
#include "granularity/public_op.h"
#include "weight_only/core_ops.h"

namespace baraquant::weight_only {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m,
         "weight_only_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None, "
         "*, Tensor? weight_zero_point=None, SymInt? group_size=None) -> Tensor");
  // The same of an input with some weights: frame/lists.h.
  define(m,
         "_weight_only_linears(Tensor input, Tensor[] weights, Tensor[] weight_scales, "
         "Tensor[]? biases, Tensor[]? weight_zero_points, SymInt? group_size) -> Tensor[]");
}

}  // namespace baraquant::weight_only
