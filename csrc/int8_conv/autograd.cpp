// SPDX-License-Identifier: BSD-3-Clause
// Autograd of the convolution of integers. As in int8_linear only the bias has a gradient, the sum
// of dy over all but the output channels.
#include <torch/library.h>

#include "frame/recorded.h"
#include "frame/saved_tensors.h"
#include "int8_conv/checks.h"
#include "int8_mm/gradients.h"

namespace baraquant::int8_conv {
namespace {

struct Conv : Function<Conv> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& bias, c10::DispatchKeySet keys,
                          const ConvArgs& args) {
    ctx->saved_data["dtype"] = static_cast<int64_t>(bias.scalar_type());
    ctx->saved_data["channel"] = args.is_batched() ? 1 : 0;
    return int8_conv.below_autograd(keys, args);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const at::Tensor rows = grads[0].movedim(ctx->saved_data["channel"].toInt(), -1);
    return {int8_mm::bias_gradient(rows, dtype, {}), {}, {}};
  }
};

at::Tensor int8_conv_autograd(c10::DispatchKeySet keys, const ConvArgs& args) {
  int8_conv.check_dispatchable(args);
  check_constant(kOp, "input_scale", args.input_scale);
  check_constant(kOp, "weight_scale", args.weight_scale);
  if (is_recorded(args.bias)) return Conv::apply(*args.bias, keys, args);
  return int8_conv.below_autograd(keys, args);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) { m.impl("int8_conv", kernel_of<&int8_conv_autograd>); }

}  // namespace baraquant::int8_conv
