// SPDX-License-Identifier: BSD-3-Clause
// The scaled family under autograd: integers, and scales that come from data, are constants to it.
// NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.
#include <torch/library.h>

#include "scaled/core_ops.h"

namespace baraquant::scaled {

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("scaled_quantize_per_token", kernel_of<scaled_quantize_per_token.kCheckedBelowAutograd>);
  m.impl("scaled_quantize_transposed", kernel_of<scaled_quantize_transposed.kCheckedBelowAutograd>);
  m.impl("transpose_int8", kernel_of<transpose_int8.kCheckedBelowAutograd>);
  m.impl("draw_random", kernel_of<draw_random.kCheckedBelowAutograd>);
}

}  // namespace baraquant::scaled
