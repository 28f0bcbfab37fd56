// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights under autograd: integers, and what is chosen from data, are constants
// to it. NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.
#include <torch/library.h>

#include "frame/checks.h"
#include "int4/checks.h"

namespace baraquant::int4 {
namespace {

Qparams choose_autograd(const ChooseArgs& args) {
  check_dispatchable("baraquant::choose_int4_qparams", "weight", args.weight);
  return choose_int4_qparams.below_autograd(args);
}

at::Tensor quantize_autograd(const QuantizeArgs& args) {
  const char* op = "baraquant::quantize_int4";
  check_dispatchable(op, "weight", args.weight);
  check_dispatchable(op, "scale", args.scale);
  check_groups_dispatchable(op, args.groups());
  return quantize_int4.below_autograd(args);
}

at::Tensor expand_autograd(const ExpandArgs& args) {
  const char* op = "baraquant::expand_int4";
  check_dispatchable(op, "packed", args.packed);
  check_groups_dispatchable(op, args.groups());
  return expand_int4.below_autograd(args);
}

at::Tensor pack_autograd(const at::Tensor& integers) {
  check_dispatchable("baraquant::pack_int4", "integers", integers);
  return pack_int4.below_autograd(integers);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("choose_int4_qparams", kernel_of<&choose_autograd>);
  m.impl("quantize_int4", kernel_of<&quantize_autograd>);
  m.impl("expand_int4", kernel_of<&expand_autograd>);
  m.impl("pack_int4", kernel_of<&pack_autograd>);
}

}  // namespace baraquant::int4
