// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scaled family: schemas. They are what a backward pass of integers consists of,
// besides the product. The arithmetic is in math.h, checks are in checks.cpp.
//   scaled_quantize_per_token   q, s = dynamic_range_quantize_per_token(C(input) * factor), with a
//                               factor for each column
//   scaled_quantize_transposed  the same of the transpose of C(input) * factor, with a factor for
//                               each row
//   transpose_int8              the transpose of a matrix, as a new one
//   draw_random                 a state of PyTorch's generator for stochastic rounding
// The arguments:
//   input    [..., N] floating, any strides; [M, N] below stands for its rows
//   factor   of the compute type C of the input; [N], or one for each row: [...] or [..., 1]
//   random   int64 [2] on the input's device, from draw_random: round stochastically. None: to the
//            nearest
// Integers are int8 and contiguous, [..., N] or [N, M]; scales are C [..., 1] or [N].
#include "granularity/public_op.h"
#include "scaled/core_ops.h"

namespace baraquant::scaled {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const std::string scaled =
      std::string("(") + ScaledArgs::kSchema + ") -> (Tensor output, Tensor scale)";
  define(m, "scaled_quantize_per_token" + scaled);
  define(m, "scaled_quantize_transposed" + scaled);
  define(m, "transpose_int8(Tensor input) -> Tensor");
  // Two calls differ, so that tracing must neither merge nor drop nor repeat them.
  m.def(torch::schema("draw_random(Tensor like, int count=1) -> Tensor"),
        {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded});
}

}  // namespace baraquant::scaled
