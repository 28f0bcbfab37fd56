// SPDX-License-Identifier: BSD-3-Clause
// The straight-through estimator, wired into autograd once for each core op.
// Note [What is kept for backward]
// fake_quantize and quantize need to know where v lay in the range. A leaf (a parameter), or a view
// of one, is alive anyway: the input itself is kept, at no cost. Any other input (an activation)
// would be kept alive by it: one bit per element is kept instead. save_mask overrides the rule. A
// learned scale or zero point needs the input's values, so the input is kept.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/saved_tensors.h"
#include "granularity/memory_order.h"
#include "machine/float_types.h"

namespace baraquant::affine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool requires_grad(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }

bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

// Whether autograd has anything to record. Forward-mode tangents count, so that the Function
// refuses them instead of their being dropped.
bool is_recorded(const at::Tensor& first, const QuantArgs& q, const at::Tensor& grad = {}) {
  if (at::GradMode::is_enabled() &&
      (first.requires_grad() || requires_grad(q.scale) || requires_grad(q.zero_point) ||
       (grad.defined() && grad.requires_grad()))) {
    return true;
  }
  return has_tangent(first) || (q.scale && has_tangent(*q.scale)) ||
         (q.zero_point && has_tangent(*q.zero_point)) || (grad.defined() && has_tangent(grad));
}

void refuse_learned_qparams(const char* verb, const QuantArgs& q) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(at::GradMode::is_enabled() && (requires_grad(q.scale) || requires_grad(q.zero_point))),
      OpName{verb, q.granularity},
      ": the gradient of scale and zero_point is given by fake_quantize only; use "
      "fake_quantize_",
      granularity_name(q.granularity), ", or detach them (scale.detach())");
}

// What is no tensor, between forward and backward: QuantArgs, a dtype, a flag, and a memory order.
// One list of integers in one entry of saved_data: every entry costs time in a small call.
struct SavedNumbers {
  at::ScalarType dtype;
  bool through_quantize;
  std::vector<int64_t> order = {};
};

void save_numbers(AutogradContext* ctx, const QuantArgs& q, const SavedNumbers& more) {
  std::vector<c10::SymInt> list{static_cast<int64_t>(q.granularity),
                                q.axis,
                                q.group_size,
                                q.quant_min,
                                q.quant_max,
                                q.zero_point_number,
                                bit_cast<int64_t>(q.scale_number),
                                static_cast<int64_t>(more.dtype),
                                static_cast<int64_t>(more.through_quantize)};
  list.insert(list.end(), more.order.begin(), more.order.end());
  ctx->saved_data.emplace("numbers", std::move(list));
}

class SavedArgs {
 public:
  SavedArgs(const AutogradContext* ctx, const Variable& scale, const Variable& zero_point)
      : scale_(scale.defined() ? OptionalTensor(scale) : std::nullopt),
        zero_point_(zero_point.defined() ? OptionalTensor(zero_point) : std::nullopt) {
    const auto list = ctx->saved_data.at("numbers").toSymIntVector();
    const auto number = [&](size_t i) { return list[i].expect_int(); };
    args_.emplace(QuantArgs{scale_, zero_point_, bit_cast<double>(number(6)), number(5),
                            static_cast<Granularity>(number(0)), number(1), list[2], number(3),
                            number(4)});
    numbers_ = {static_cast<at::ScalarType>(number(7)), number(8) != 0};
    for (size_t i = 9; i < list.size(); ++i) numbers_.order.push_back(number(i));
  }
  const QuantArgs& operator*() const { return *args_; }
  const SavedNumbers* operator->() const { return &numbers_; }

 private:
  OptionalTensor scale_, zero_point_;
  std::optional<QuantArgs> args_;
  SavedNumbers numbers_;
};

const at::Tensor& tensor_or_none(const OptionalTensor& tensor) {
  static const at::Tensor none;
  return tensor ? *tensor : none;
}

// x -> q in a floating dtype (through_quantize), or x -> y.
template <bool through_quantize>
class Forward : public Function<Forward<through_quantize>> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& scale, const OptionalTensor& zero_point,
                          const QuantArgs& q, at::ScalarType dtype, bool with_mask,
                          const OptionalTensor& enabled) {
    at::AutoDispatchBelowADInplaceOrView guard;
    if (!with_mask) {
      save_numbers(ctx, q, {input.scalar_type(), through_quantize});
      ctx->save_for_backward({input, tensor_or_none(scale), tensor_or_none(zero_point), {}});
      return through_quantize ? quantize(input, q, dtype, std::nullopt)
                              : fake_quantize(input, q, std::nullopt);
    }
    std::vector<int64_t> order;
    if (input.is_non_overlapping_and_dense()) order = memory_order(input);
    const auto [output, mask] = through_quantize
                                    ? quantize_with_mask(input, q, dtype, order)
                                    : fake_quantize_with_mask(input, q, order, enabled);
    save_numbers(ctx, q, {input.scalar_type(), through_quantize, order});
    // Through fake_quantize the bit says it all.
    ctx->save_for_backward({{}, through_quantize ? tensor_or_none(scale) : at::Tensor(), {}, mask});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const SavedArgs args(ctx, saved[1], saved[2]);
    const at::Tensor &input = saved[0], &mask = saved[3], &grad = grads[0];
    variable_list result(7);
    if (mask.defined()) {
      result[0] = masked_gradient(grad, *args, mask, args->order, args->dtype, through_quantize);
      return result;
    }
    // The tensors among forward's arguments are counted: input, scale, zero_point.
    const bool scale = saved[1].defined() && ctx->needs_input_grad(1);
    const bool zero_point = saved[2].defined() && ctx->needs_input_grad(2);
    if (!scale && !zero_point) {
      result[0] = input_gradient(input, *args, grad, through_quantize);
      return result;
    }
    auto [dx, dscale, dzero] = qparams_gradient(input, *args, grad, zero_point);
    if (ctx->needs_input_grad(0)) result[0] = dx;
    if (scale) result[1] = dscale;
    if (zero_point) result[2] = dzero;
    return result;
  }
};

class DequantizeFunction : public Function<DequantizeFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& scale, const OptionalTensor& zero_point,
                          const QuantArgs& q, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_numbers(ctx, q, {input.scalar_type(), false});
    ctx->save_for_backward({tensor_or_none(scale)});
    return dequantize(input, q, dtype);
  }

  // dq = dy * s is dequantize itself with a zero point of 0.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const SavedArgs args(ctx, ctx->get_saved_variables()[0], {});
    QuantArgs q = *args;
    q.zero_point_number = 0;
    return {dequantize(grads[0], q, args->dtype), {}, {}, {}, {}};
  }
};

// (x, dy) -> dx, linear in dy: its gradient is itself, at the same x.
class InputGradientFunction : public Function<InputGradientFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input,
                          const OptionalTensor& scale, const OptionalTensor& zero_point,
                          const QuantArgs& q, const at::Tensor& grad, bool through_quantize) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_numbers(ctx, q, {grad.scalar_type(), through_quantize});
    ctx->save_for_backward({input, tensor_or_none(scale), tensor_or_none(zero_point)});
    return input_gradient(input, q, grad, through_quantize);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const SavedArgs args(ctx, saved[1], saved[2]);
    const bool wider = args->dtype == compute_dtype(saved[0].scalar_type());
    const at::Tensor input = wider ? saved[0].to(args->dtype) : saved[0];
    const at::Tensor dgrad =
        input_gradient(input, *args, grads[0].to(input.scalar_type()), args->through_quantize);
    return {{}, {}, {}, {}, dgrad.to(args->dtype), {}};
  }
};

class MaskedGradientFunction : public Function<MaskedGradientFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& grad, const OptionalTensor& scale,
                          const QuantArgs& q, const at::Tensor& mask, at::IntArrayRef order,
                          at::ScalarType dtype, bool through_quantize) {
    at::AutoDispatchBelowADInplaceOrView guard;
    save_numbers(ctx, q, {grad.scalar_type(), through_quantize, order.vec()});
    ctx->save_for_backward({mask, tensor_or_none(scale)});
    return masked_gradient(grad, q, mask, order, dtype, through_quantize);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const SavedArgs args(ctx, saved[1], {});
    const at::Tensor grad = args->through_quantize ? grads[0] : grads[0].to(args->dtype);
    variable_list result(7);
    result[0] =
        masked_gradient(grad, *args, saved[0], args->order, args->dtype, args->through_quantize);
    return result;
  }
};

class QparamsGradientFunction : public Function<QparamsGradientFunction> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const at::Tensor& input,
                               const OptionalTensor& scale, const OptionalTensor& zero_point,
                               const QuantArgs& q, const at::Tensor& grad,
                               bool zero_point_gradient) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->set_materialize_grads(false);
    save_numbers(ctx, q, {grad.scalar_type(), false});
    ctx->save_for_backward({input, tensor_or_none(scale), tensor_or_none(zero_point)});
    auto [dx, dscale, dzero] = qparams_gradient(input, q, grad, zero_point_gradient);
    return {dx, dscale, dzero};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const SavedArgs args(ctx, saved[1], saved[2]);
    const OpName op{"fake_quantize", (*args).granularity, "_backward_qparams"};
    TORCH_CHECK_NOT_IMPLEMENTED(!grads[1].defined() && !grads[2].defined(), op,
                                ": the gradients of scale and zero_point cannot be differentiated "
                                "again; only grad_input can");
    variable_list result(6);
    if (grads[0].defined()) result[4] = input_gradient(saved[0], *args, grads[0], false);
    return result;
  }
};

at::Tensor quantize_autograd(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                             std::optional<bool> save_mask) {
  const bool differentiable = at::isFloatingType(dtype);
  if (differentiable) refuse_learned_qparams("quantize", q);
  if (!differentiable || !is_recorded(input, q)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return quantize(input, q, dtype, std::nullopt);
  }
  return Forward<true>::apply(input, q.scale, q.zero_point, q, dtype,
                              save_mask.value_or(!is_alive_anyway(input)), OptionalTensor());
}

at::Tensor fake_quantize_autograd(const at::Tensor& input, const QuantArgs& q,
                                  std::optional<bool> save_mask, const OptionalTensor& enabled) {
  if (!is_recorded(input, q)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return fake_quantize(input, q, std::nullopt, enabled);
  }
  const bool learned = requires_grad(q.scale) || requires_grad(q.zero_point);
  TORCH_CHECK_NOT_IMPLEMENTED(!(enabled && learned), OpName{"fake_quantize", q.granularity},
                              ": a learned scale or zero point cannot be switched off");
  // A switch may be thrown before backward: the bits hold what it was.
  const bool with_mask = enabled || save_mask.value_or(!is_alive_anyway(input));
  return Forward<false>::apply(input, q.scale, q.zero_point, q, input.scalar_type(),
                               !learned && with_mask, enabled);
}

at::Tensor dequantize_autograd(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype) {
  refuse_learned_qparams("dequantize", q);
  if (!is_recorded(input, q)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return dequantize(input, q, dtype);
  }
  return DequantizeFunction::apply(input, q.scale, q.zero_point, q, dtype);
}

at::Tensor input_gradient_autograd(const at::Tensor& input, const QuantArgs& q,
                                   const at::Tensor& grad, bool through_quantize) {
  if (!is_recorded(input, q, grad)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return input_gradient(input, q, grad, through_quantize);
  }
  return InputGradientFunction::apply(input, q.scale, q.zero_point, q, grad, through_quantize);
}

at::Tensor masked_gradient_autograd(const at::Tensor& grad, const QuantArgs& q,
                                    const at::Tensor& mask, at::IntArrayRef order,
                                    at::ScalarType dtype, bool through_quantize) {
  if (!is_recorded(grad, q)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return masked_gradient(grad, q, mask, order, dtype, through_quantize);
  }
  return MaskedGradientFunction::apply(grad, q.scale, q, mask, order, dtype, through_quantize);
}

TensorTriple qparams_gradient_autograd(const at::Tensor& input, const QuantArgs& q,
                                       const at::Tensor& grad, bool zero_point_gradient) {
  if (!is_recorded(input, q, grad)) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return qparams_gradient(input, q, grad, zero_point_gradient);
  }
  auto outputs =
      QparamsGradientFunction::apply(input, q.scale, q.zero_point, q, grad, zero_point_gradient);
  return {outputs[0], outputs[1], outputs[2]};
}

// The forms that return the mask are what Forward calls below autograd.
void refuse_gradient(const OpName& op, const at::Tensor& input, const QuantArgs& q) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_recorded(input, q), op,
                              ": the form that returns the mask is not differentiable; call the op "
                              "itself with save_mask=True");
}

TensorPair quantize_with_mask_autograd(const at::Tensor& input, const QuantArgs& q,
                                       at::ScalarType dtype, at::IntArrayRef order) {
  refuse_gradient({"quantize", q.granularity}, input, q);
  at::AutoDispatchBelowADInplaceOrView guard;
  return quantize_with_mask(input, q, dtype, order);
}

TensorPair fake_quantize_with_mask_autograd(const at::Tensor& input, const QuantArgs& q,
                                            at::IntArrayRef order, const OptionalTensor& enabled) {
  refuse_gradient({"fake_quantize", q.granularity}, input, q);
  at::AutoDispatchBelowADInplaceOrView guard;
  return fake_quantize_with_mask(input, q, order, enabled);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_quantize", &Flat<&quantize_autograd>::kernel);
  m.impl("_fake_quantize", &Flat<&fake_quantize_autograd>::kernel);
  m.impl("_dequantize", &Flat<&dequantize_autograd>::kernel);
  m.impl("_quantize_with_mask", &Flat<&quantize_with_mask_autograd>::kernel);
  m.impl("_fake_quantize_with_mask", &Flat<&fake_quantize_with_mask_autograd>::kernel);
  m.impl("_input_gradient", &Flat<&input_gradient_autograd>::kernel);
  m.impl("_masked_gradient", &Flat<&masked_gradient_autograd>::kernel);
  m.impl("_qparams_gradient", &Flat<&qparams_gradient_autograd>::kernel);
}

}  // namespace baraquant::affine
