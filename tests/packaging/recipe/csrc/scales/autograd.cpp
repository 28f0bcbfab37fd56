// SPDX-License-Identifier: BSD-3-Clause
// The scales family under autograd: the gradient goes straight through the rounding.
// NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/named_op.h"
#include "frame/recorded.h"
#include "frame/saved_tensors.h"

namespace baraquant::scales {
namespace {

constexpr NamedOp<"baraquant::round_to_power_of_two_scale", at::Tensor(const at::Tensor& scale)>
    round_to_power_of_two_scale;

struct RoundFunction : Function<RoundFunction> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& scale) {
    return round_to_power_of_two_scale.below_autograd(scale);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0]}; }
};

at::Tensor round_autograd(const at::Tensor& scale) {
  check_dispatchable("baraquant::round_to_power_of_two_scale", "scale", scale);
  if (!is_recorded(scale)) return round_to_power_of_two_scale.below_autograd(scale);
  return RoundFunction::apply(scale);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("round_to_power_of_two_scale", kernel_of<&round_autograd>);
}

}  // namespace baraquant::scales
