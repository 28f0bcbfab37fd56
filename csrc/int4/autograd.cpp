// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights under autograd: integers, and what is chosen from data, are constants
// to it. NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.
#include <torch/library.h>

#include "int4/core_ops.h"

namespace baraquant::int4 {

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("choose_int4_qparams", kernel_of<choose_int4_qparams.kCheckedBelowAutograd>);
  m.impl("quantize_int4", kernel_of<quantize_int4.kCheckedBelowAutograd>);
  m.impl("expand_int4", kernel_of<expand_int4.kCheckedBelowAutograd>);
  m.impl("pack_int4", kernel_of<pack_int4.kCheckedBelowAutograd>);
}

}  // namespace baraquant::int4
