// SPDX-License-Identifier: BSD-3-Clause
// The straight-through estimator, wired into autograd once for each core op.
// Note [What is kept for backward]
// The backward of fake_quantize and quantize has to know which elements lay inside the range. If the
// input is a leaf (a parameter) or a view of one, it is kept itself: that takes no memory. Any other
// input (an activation) would be kept alive, so one bit per element is kept instead. save_mask
// overrides the rule. The gradient of a learned scale or zero point needs the input's values: then
// the input is kept.
#include <torch/library.h>

#include "affine/core_ops.h"
#include "affine/saved.h"
#include "frame/checks.h"
#include "frame/dtypes.h"
#include "frame/recorded.h"
#include "granularity/memory_order.h"

namespace baraquant::affine {
namespace {

bool is_learned(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }
bool is_learned(const QuantArgs& q) { return is_learned(q.scale) || is_learned(q.zero_point); }

// Whether autograd has anything to record.
bool records(const at::Tensor& first, const QuantArgs& q) {
  return is_recorded(first) || is_recorded(q.scale) || is_recorded(q.zero_point);
}

void refuse_learned_qparams(const char* verb, const QuantArgs& q) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(at::GradMode::is_enabled() && is_learned(q)), OpName{verb, q.scope.granularity},
      ": the gradient of scale and zero_point is given by fake_quantize only; use "
      "fake_quantize_",
      granularity_name(q.scope.granularity), ", or detach them (scale.detach())");
}

const at::Tensor& tensor_or_none(const OptionalTensor& tensor) {
  static const at::Tensor none;
  return tensor ? *tensor : none;
}

// Autograd sees the tensors that forward is given by themselves, not those of a QuantArgs, so forward
// takes the scale and the zero point twice.

// Keeps a call whose gradient depends on its input.
void keep_call(AutogradContext* ctx, const at::Tensor& input, const QuantArgs& q,
               at::ScalarType dtype, bool through_quantize) {
  save_numbers(ctx, q, dtype, through_quantize);
  save_tensors(ctx, SavedTensors{.input = input,
                                 .scale = tensor_or_none(q.scale),
                                 .zero_point = tensor_or_none(q.zero_point)});
}

// x -> q in a floating dtype (through_quantize), or x -> y.
template <bool through_quantize>
struct Forward : Function<Forward<through_quantize>> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& scale, const OptionalTensor& /*zero_point*/,
                          const QuantArgs& q, at::ScalarType dtype, bool with_mask,
                          const OptionalTensor& enabled) {
    at::AutoDispatchBelowADInplaceOrView guard;
    if (!with_mask) {
      keep_call(ctx, input, q, input.scalar_type(), through_quantize);
      return through_quantize ? quantize(input, q, dtype, std::nullopt)
                              : fake_quantize(input, q, std::nullopt, std::nullopt);
    }
    std::vector<int64_t> order;
    if (input.is_non_overlapping_and_dense()) order = memory_order(input);
    const auto [output, mask] = through_quantize
                                    ? quantize_with_mask(input, q, dtype, order)
                                    : fake_quantize_with_mask(input, q, order, enabled);
    save_numbers(ctx, q, input.scalar_type(), through_quantize, order);
    // The gradient through fake_quantize depends on the mask alone.
    save_tensors(ctx, SavedTensors{.scale = through_quantize ? tensor_or_none(scale) : at::Tensor(),
                                   .mask = mask});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Saved saved(ctx);
    const at::Tensor& grad = grads[0];
    variable_list result(7);
    if (saved.mask.defined()) {
      result[0] =
          masked_gradient(grad, saved.q, saved.mask, saved.order, saved.dtype, through_quantize);
      return result;
    }
    // needs_input_grad counts the tensors among forward's arguments: input, scale, zero_point.
    const bool scale = saved.scale.defined() && ctx->needs_input_grad(1);
    const bool zero_point = saved.zero_point.defined() && ctx->needs_input_grad(2);
    if (!scale && !zero_point) {
      result[0] = input_gradient(saved.input, saved.q, grad, through_quantize);
      return result;
    }
    auto [dx, dscale, dzero] = qparams_gradient(saved.input, saved.q, grad, zero_point);
    if (ctx->needs_input_grad(0)) result[0] = dx;
    if (scale) result[1] = dscale;
    if (zero_point) result[2] = dzero;
    return result;
  }
};

struct DequantizeFunction : Function<DequantizeFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& scale, const OptionalTensor& /*zero_point*/,
                          const QuantArgs& q, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_numbers(ctx, q, input.scalar_type(), /*through_quantize=*/false);
    save_tensors(ctx, SavedTensors{.scale = tensor_or_none(scale)});
    return dequantize(input, q, dtype);
  }

  // dq = dy * s is dequantize itself with a zero point of 0.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Saved saved(ctx);
    QuantArgs q = saved.q;
    q.zero_point_number = 0;
    return {dequantize(grads[0], q, saved.dtype), {}, {}, {}, {}};
  }
};

// (x, dy) -> dx. It is linear in dy: the gradient in dy is the same function at the same x.
struct InputGradientFunction : Function<InputGradientFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& /*scale*/, const OptionalTensor& /*zero_point*/,
                          const QuantArgs& q, const at::Tensor& grad, bool through_quantize) {
    at::AutoDispatchBelowADInplaceOrView guard;
    keep_call(ctx, input, q, grad.scalar_type(), through_quantize);
    return input_gradient(input, q, grad, through_quantize);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Saved saved(ctx);
    const bool wider = saved.dtype == compute_dtype(saved.input.scalar_type());
    const at::Tensor input = wider ? saved.input.to(saved.dtype) : saved.input;
    const at::Tensor grad = grads[0].to(input.scalar_type());
    const at::Tensor dgrad = input_gradient(input, saved.q, grad, saved.through_quantize);
    return {{}, {}, {}, {}, dgrad.to(saved.dtype), {}};
  }
};

struct MaskedGradientFunction : Function<MaskedGradientFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& grad, const OptionalTensor& scale,
                          const QuantArgs& q, const at::Tensor& mask, at::IntArrayRef order,
                          at::ScalarType dtype, bool through_quantize) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_numbers(ctx, q, grad.scalar_type(), through_quantize, order);
    save_tensors(ctx, SavedTensors{.scale = tensor_or_none(scale), .mask = mask});
    return masked_gradient(grad, q, mask, order, dtype, through_quantize);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Saved saved(ctx);
    const at::Tensor grad = saved.through_quantize ? grads[0] : grads[0].to(saved.dtype);
    variable_list result(7);
    result[0] = masked_gradient(grad, saved.q, saved.mask, saved.order, saved.dtype,
                                saved.through_quantize);
    return result;
  }
};

struct QparamsGradientFunction : Function<QparamsGradientFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input,
                               const OptionalTensor& /*scale*/,
                               const OptionalTensor& /*zero_point*/, const QuantArgs& q,
                               const at::Tensor& grad, bool zero_point_gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    keep_call(ctx, input, q, grad.scalar_type(), /*through_quantize=*/false);
    auto [dx, dscale, dzero] = qparams_gradient(input, q, grad, zero_point_gradient);
    return {dx, dscale, dzero};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Saved saved(ctx);
    const OpName op{"fake_quantize", saved.q.scope.granularity, "_backward_qparams"};
    TORCH_CHECK_NOT_IMPLEMENTED(!grads[1].defined() && !grads[2].defined(), op,
                                ": the gradients of scale and zero_point cannot be differentiated "
                                "again; only grad_input can");
    variable_list result(6);
    if (grads[0].defined()) {
      result[4] = input_gradient(saved.input, saved.q, grads[0], /*through_quantize=*/false);
    }
    return result;
  }
};

at::Tensor quantize_autograd(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                             std::optional<bool> save_mask) {
  const bool differentiable = at::isFloatingType(dtype);
  if (differentiable) refuse_learned_qparams("quantize", q);
  if (!differentiable || !records(input, q)) {
    return quantize.below_autograd(input, q, dtype, std::nullopt);
  }
  return Forward<true>::apply(input, q.scale, q.zero_point, q, dtype,
                              save_mask.value_or(!is_kept_anyway(input)), OptionalTensor());
}

at::Tensor fake_quantize_autograd(const at::Tensor& input, const QuantArgs& q,
                                  std::optional<bool> save_mask, const OptionalTensor& enabled) {
  if (!records(input, q)) {
    return fake_quantize.below_autograd(input, q, std::nullopt, enabled);
  }
  const bool learned = is_learned(q);
  TORCH_CHECK_NOT_IMPLEMENTED(!(enabled && learned), OpName{"fake_quantize", q.scope.granularity},
                              ": a learned scale or zero point cannot be switched off");
  // The switch may change before backward; the mask holds what it was.
  const bool with_mask = enabled || save_mask.value_or(!is_kept_anyway(input));
  return Forward<false>::apply(input, q.scale, q.zero_point, q, input.scalar_type(),
                               !learned && with_mask, enabled);
}

at::Tensor dequantize_autograd(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype) {
  refuse_learned_qparams("dequantize", q);
  if (!records(input, q)) {
    return dequantize.below_autograd(input, q, dtype);
  }
  return DequantizeFunction::apply(input, q.scale, q.zero_point, q, dtype);
}

at::Tensor input_gradient_autograd(const at::Tensor& input, const QuantArgs& q,
                                   const at::Tensor& grad, bool through_quantize) {
  if (!records(input, q) && !is_recorded(grad)) {
    return input_gradient.below_autograd(input, q, grad, through_quantize);
  }
  return InputGradientFunction::apply(input, q.scale, q.zero_point, q, grad, through_quantize);
}

at::Tensor masked_gradient_autograd(const at::Tensor& grad, const QuantArgs& q,
                                    const at::Tensor& mask, at::IntArrayRef order,
                                    at::ScalarType dtype, bool through_quantize) {
  if (!records(grad, q)) {
    return masked_gradient.below_autograd(grad, q, mask, order, dtype, through_quantize);
  }
  return MaskedGradientFunction::apply(grad, q.scale, q, mask, order, dtype, through_quantize);
}

TensorTriple qparams_gradient_autograd(const at::Tensor& input, const QuantArgs& q,
                                       const at::Tensor& grad, bool zero_point_gradient) {
  if (!records(input, q) && !is_recorded(grad)) {
    return qparams_gradient.below_autograd(input, q, grad, zero_point_gradient);
  }
  auto outputs =
      QparamsGradientFunction::apply(input, q.scale, q.zero_point, q, grad, zero_point_gradient);
  return {outputs[0], outputs[1], outputs[2]};
}

at::Tensor round_master_autograd(const at::Tensor& input, bool to_bfloat16) {
  check_dispatchable("baraquant::_round_master", "input", input);
  if (!is_recorded(input)) return round_master.below_autograd(input, to_bfloat16);
  return StraightThrough<round_master>::apply(input, to_bfloat16);
}

// Forward calls the forms that return the mask, below autograd. Nobody else differentiates them.
void refuse_gradient(const OpName& op, const at::Tensor& input, const QuantArgs& q) {
  TORCH_CHECK_NOT_IMPLEMENTED(!records(input, q), op,
                              ": the form that returns the mask is not differentiable; call the op "
                              "itself with save_mask=True");
}

TensorPair quantize_with_mask_autograd(const at::Tensor& input, const QuantArgs& q,
                                       at::ScalarType dtype, at::IntArrayRef order) {
  refuse_gradient({"quantize", q.scope.granularity}, input, q);
  return quantize_with_mask.below_autograd(input, q, dtype, order);
}

TensorPair fake_quantize_with_mask_autograd(const at::Tensor& input, const QuantArgs& q,
                                            at::IntArrayRef order, const OptionalTensor& enabled) {
  refuse_gradient({"fake_quantize", q.scope.granularity}, input, q);
  return fake_quantize_with_mask.below_autograd(input, q, order, enabled);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_quantize", kernel_of<&quantize_autograd>);
  m.impl("_fake_quantize", kernel_of<&fake_quantize_autograd>);
  m.impl("_dequantize", kernel_of<&dequantize_autograd>);
  m.impl("_quantize_with_mask", kernel_of<&quantize_with_mask_autograd>);
  m.impl("_fake_quantize_with_mask", kernel_of<&fake_quantize_with_mask_autograd>);
  m.impl("_input_gradient", kernel_of<&input_gradient_autograd>);
  m.impl("_masked_gradient", kernel_of<&masked_gradient_autograd>);
  m.impl("_qparams_gradient", kernel_of<&qparams_gradient_autograd>);
  m.impl("_round_master", kernel_of<&round_master_autograd>);
}

}  // namespace baraquant::affine
