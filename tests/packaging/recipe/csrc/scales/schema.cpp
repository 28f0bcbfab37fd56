// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scales family: schemas. The arithmetic is in math.h.
//   round_to_power_of_two_scale  the power of two that is nearest to each scale
// The argument:
//   scale  floating, any shape and strides
// The output is contiguous, of the shape and dtype of the scale.
#include "granularity/public_op.h"

namespace baraquant::scales {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m, "round_to_power_of_two_scale(Tensor scale) -> Tensor");
}

}  // namespace baraquant::scales
