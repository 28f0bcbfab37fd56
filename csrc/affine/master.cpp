// SPDX-License-Identifier: BSD-3-Clause
// _round_master: the numbers of a parameter, rounded to float16 or bfloat16, in the parameter's dtype;
// the gradient goes straight through. Two casts in Python would not do: Inductor removes them.
//   input         floating, any strides
//   to_bfloat16   true for bfloat16, false for float16. It is no dtype, as a package of AOTInductor
//                 can call no op with one
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "granularity/public_op.h"

namespace baraquant::affine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr const char* kOp = "baraquant::_round_master";

at::Tensor round_master(const at::Tensor& input, bool to_bfloat16) {
  static const CoreOp<decltype(round_master)> op(kOp);
  return op(input, to_bfloat16);
}

at::Tensor round_master_device(const at::Tensor& input, bool to_bfloat16) {
  check_floating(kOp, "input", input);
  const at::ScalarType from = input.scalar_type();
  const at::Tensor rounded = cast(input, to_bfloat16 ? at::kBFloat16 : at::kHalf);
  // NB: an op returns a tensor of its own, never its input.
  return rounded.scalar_type() == from ? input.clone() : cast(rounded, from);
}

class RoundMaster : public Function<RoundMaster> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, bool to_bfloat16) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return round_master(input, to_bfloat16);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0], {}};
  }
};

at::Tensor round_master_autograd(const at::Tensor& input, bool to_bfloat16) {
  check_dispatchable(kOp, "input", input);
  const bool is_learned = at::GradMode::is_enabled() && input.requires_grad();
  if (is_learned || input._fw_grad(/*level=*/0).defined()) {
    return RoundMaster::apply(input, to_bfloat16);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return round_master(input, to_bfloat16);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m, "_round_master(Tensor input, bool to_bfloat16) -> Tensor");
}
TORCH_LIBRARY_IMPL(baraquant, CPU, m) { m.impl("_round_master", &round_master_device); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { m.impl("_round_master", &round_master_device); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { m.impl("_round_master", &round_master_device); }
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) { m.impl("_round_master", &round_master_autograd); }

}  // namespace baraquant::affine
