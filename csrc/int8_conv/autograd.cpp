// SPDX-License-Identifier: BSD-3-Clause
// Autograd of the convolution of integers. As in int8_linear only the bias has a gradient, the sum
// of dy over all but the output channels.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "frame/core_op.h"
#include "int8_conv/checks.h"
#include "int8_mm/gradients.h"

namespace baraquant::int8_conv {
namespace {

using Keys = c10::DispatchKeySet;
using Op = CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor&, at::IntArrayRef, at::IntArrayRef,
                             at::IntArrayRef, int64_t, std::optional<at::ScalarType>)>;

at::Tensor below_autograd(Keys keys, const ConvArgs& args) {
  static const Op op(kOp);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, args.input, args.weight, args.input_scale,
                       args.weight_scale, args.bias, args.input_zero_point, args.weight_sum,
                       args.stride, args.padding, args.dilation, args.groups, args.dtype);
}

class Conv : public torch::autograd::Function<Conv> {
 public:
  static constexpr bool is_traceable = true;

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& bias,
                            Keys keys, const ConvArgs& args) {
    ctx->saved_data["dtype"] = static_cast<int64_t>(bias.scalar_type());
    ctx->saved_data["channel"] = args.is_batched() ? 1 : 0;
    return below_autograd(keys, args);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const at::Tensor rows = grads[0].movedim(ctx->saved_data["channel"].toInt(), -1);
    return {int8_mm::bias_gradient(rows, dtype, {}), {}, {}};
  }
};

at::Tensor int8_conv(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                     const at::Tensor& input_scale, const at::Tensor& weight_scale,
                     const OptionalTensor& bias, const OptionalTensor& input_zero_point,
                     const OptionalTensor& weight_sum, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                     std::optional<at::ScalarType> dtype) {
  const ConvArgs args{input,   weight,           input_scale, weight_scale,
                      bias,    input_zero_point, weight_sum,  stride,
                      padding, dilation,         groups,      output_dtype(dtype, weight_scale)};
  check_dispatchable_args(args);
  int8_mm::check_scale(kOp, "input_scale", input_scale);
  int8_mm::check_scale(kOp, "weight_scale", weight_scale);
  if (bias && int8_mm::is_recorded(*bias)) return Conv::apply(*bias, keys, args);
  return below_autograd(keys, args);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) { m.impl("int8_conv", &int8_conv); }

}  // namespace baraquant::int8_conv
