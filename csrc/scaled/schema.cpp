// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scaled family: schemas. They are what a backward pass of integers consists of,
// besides the product. What each computes, and what its arguments are, stands in ops.txt; the
// arithmetic is in math.h, checks are in checks.cpp. Outputs are contiguous.
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
