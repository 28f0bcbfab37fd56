// SPDX-License-Identifier: BSD-3-Clause
// qat_linear, qat_grouped_linear and autograd: the gradients of
//   linear(dynamic_fake_quantize_per_token(x, quant_min, quant_max),
//          dynamic_fake_quantize_per_channel(w, 0, weight_quant_min, weight_quant_max), b)
// where the roundings pass gradients straight through (Bengio et al. 2013):
//   dx = inside ? dy @ w^ : 0,   dw = dy^T @ x^,   db = sum of dy over tokens
// x^ and w^ are the rounded numbers. The input's integers are kept for x^: one byte for each
// element, and one bit (`inside`) if the input's scheme is asymmetric. For w^ the weight's integers
// are kept too, unless the weight is a parameter, which stays in memory in any case: then only its
// scales are kept and it is rounded again. The weight's scheme is symmetric around 0, so its scale
// clips nothing: |x| <= quant_max * s, and x / s rounds to quant_max at most. Integers that are
// given stand for w^ and are kept; the gradient of w is not clipped there either.
// A backward of integers (integer_backward.h) keeps the same and uses the integers again.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/core_op.h"
#include "frame/dtypes.h"
#include "frame/saved_tensors.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/gradients.h"
#include "int8_mm/integer_backward.h"
#include "int8_mm/served_checks.h"
#include "scaled/core_ops.h"

namespace baraquant::int8_mm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The identity, whose gradient is 0 where the mask has a 0.
class StraightThrough : public Function<StraightThrough> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& value, const at::Tensor& mask) {
    save_tensors(ctx, SavedMask{mask});
    ctx->saved_data["dtype"] = static_cast<int64_t>(value.scalar_type());
    return value;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {clip_gradient(grads[0], saved_tensors<SavedMask>(ctx).mask, dtype), {}};
  }
};

// Note [Double backward]
// The gradient of a gradient needs x^ and w^ as functions of x and w. They are not kept: backward
// recomputes them, and connects each to the edge of the graph that leads to x or w. Rounding passes
// gradients straight through, so this edge takes the gradient of x^ or w^ as it is.
enum Argument { kInput = 0, kWeight = 1 };

at::Tensor connected(const at::Tensor& rounded, Argument argument) {
  if (!at::GradMode::is_enabled()) return rounded;
  const auto node = torch::autograd::get_current_node();
  TORCH_CHECK_NOT_IMPLEMENTED(node,
                              "baraquant::qat_linear: a backward that is differentiated "
                              "again has to run in autograd's own engine");
  const torch::autograd::Edge& edge = node->next_edge(argument);
  if (edge.is_valid()) torch::autograd::impl::set_gradient_edge(rounded, edge);
  return rounded;
}

// w^ in the dtype of the input, from the weight's integers or from the weight itself, whichever was
// kept.
at::Tensor rounded_weight(const at::Tensor& kept, const at::Tensor& scale, const RowScheme& scheme,
                          at::ScalarType dtype) {
  if (kept.scalar_type() == at::kChar) {
    return dequantized(kept, scale, {}, Granularity::kPerChannel, dtype);
  }
  const OptionalTensor none, row_scales(scale.flatten());
  const affine::QuantArgs q{.scale = row_scales,
                            .zero_point = none,
                            .scope = PerChannel::from_flat(0),
                            .quant_min = scheme.quant_min,
                            .quant_max = scheme.quant_max};
  return by_rows(kept.detach(), [&](const at::Tensor& rows) {
    if (rows.scalar_type() == dtype) {
      return affine::fake_quantize(rows, q, /*save_mask=*/std::nullopt, /*enabled=*/none);
    }
    // A wider master weight: its integers first, so that no wide copy of it is made.
    const at::Tensor integers = affine::quantize(rows, q, at::kChar, /*save_mask=*/std::nullopt);
    return dequantized(integers, row_scales->flatten(), {}, Granularity::kPerChannel, dtype);
  });
}

// What backward needs: for the gradient of the weight the rounded input, for the gradient of the
// input the rounded weight.
struct SavedProduct {
  at::Tensor qinput, input_scale, input_zero_point;
  at::Tensor weight;  // its integers, or itself
  at::Tensor weight_scale;
  at::Tensor mask, offsets;
  auto fields() {
    return std::tie(qinput, input_scale, input_zero_point, weight, weight_scale, mask, offsets);
  }
};

class QatLinear : public Function<QatLinear> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& offsets,
                          const Schemes& schemes, const BackwardArgs& backward,
                          const OptionalTensor& given_qweight, const OptionalTensor& given_scale) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool symmetric = schemes.input.symmetric;
    const bool input_grad = input.requires_grad(), weight_grad = weight.requires_grad();
    const bool with_mask = input_grad && !symmetric;
    const GivenWeight given{given_qweight, given_scale};
    auto [output, qinput, input_scale, input_zero_point, mask, qweight, weight_scale] =
        offsets ? qat_grouped_linear_kept(input, weight, *offsets, bias, schemes, with_mask)
                : qat_linear_kept(input, weight, bias, schemes, with_mask, given);
    SavedProduct saved;
    if (weight_grad) {
      saved.qinput = qinput;
      saved.input_scale = input_scale;
      if (!symmetric) saved.input_zero_point = input_zero_point;
    }
    if (input_grad) {
      const bool keeps_weight = !given && (is_kept_anyway(weight) || is_graph_input(weight));
      saved.weight = keeps_weight ? weight : given ? *given.integers : qweight;
      saved.weight_scale = given ? *given.scale : weight_scale;
    }
    if (with_mask) saved.mask = mask;
    if (offsets) saved.offsets = *offsets;
    save_tensors(ctx, saved);
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["is_float"] = backward.is_float();
    ctx->saved_data["has_weight"] = backward.has_weight();
    ctx->saved_data["is_stochastic"] = backward.is_stochastic();
    ctx->saved_data["weight_quant_min"] = schemes.weight.quant_min;
    ctx->saved_data["weight_quant_max"] = schemes.weight.quant_max;
    if (bias) ctx->saved_data["bias_dtype"] = static_cast<int64_t>(bias->scalar_type());
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto saved = saved_tensors<SavedProduct>(ctx);
    const at::Tensor& dy = grads[0];
    variable_list result(8);
    set_integer_gradients(ctx, dy, saved, result);
    set_float_gradients(ctx, dy, saved, result);
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    if (result[0].defined() && saved.mask.defined()) {
      result[0] = clip_gradient(result[0], saved.mask, dtype);
    }
    const auto bias_dtype = dtype_of_bias_gradient(ctx);
    if (bias_dtype && !result[2].defined()) {
      result[2] = bias_gradient(dy, *bias_dtype, saved.offsets);
    }
    return result;
  }

 private:
  // None if no gradient of a bias is wanted.
  static std::optional<at::ScalarType> dtype_of_bias_gradient(AutogradContext* ctx) {
    if (!ctx->saved_data.count("bias_dtype") || !ctx->needs_input_grad(2)) return std::nullopt;
    return static_cast<at::ScalarType>(ctx->saved_data["bias_dtype"].toInt());
  }

  // Sets the gradients that a backward of integers computes.
  static void set_integer_gradients(AutogradContext* ctx, const at::Tensor& dy,
                                    const SavedProduct& saved, variable_list& result) {
    if (ctx->saved_data["is_float"].toBool()) return;
    const bool has_weight = ctx->saved_data["has_weight"].toBool();
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "baraquant::qat_linear: backward='",
                                has_weight ? "int8" : "int8_input",
                                "' rounds the gradient to integers and cannot be differentiated "
                                "again (create_graph=True); use backward='float'");
    IntegerBackwardArgs args;
    if (saved.weight.defined()) {
      args.weight = saved.weight;
      args.weight_scale = saved.weight_scale;
      args.weight_quant_min = ctx->saved_data["weight_quant_min"].toInt();
      args.weight_quant_max = ctx->saved_data["weight_quant_max"].toInt();
    }
    if (saved.qinput.defined() && has_weight) {
      args.qinput = saved.qinput;
      args.input_scale = saved.input_scale;
      if (saved.input_zero_point.defined()) args.input_zero_point = saved.input_zero_point;
    }
    args.bias_dtype = dtype_of_bias_gradient(ctx);
    const bool rounds = args.weight || args.qinput;
    if (!rounds && !args.bias_dtype) return;
    if (rounds && ctx->saved_data["is_stochastic"].toBool()) {
      args.random = scaled::draw_random(dy, 2);
    }
    const auto [dx, dw, db] = integer_backward(dy, args);
    if (args.weight) result[0] = dx;
    if (args.qinput) result[1] = dw;
    if (args.bias_dtype) result[2] = db;
  }

  // Sets the gradients that are wanted and not set yet.
  static void set_float_gradients(AutogradContext* ctx, const at::Tensor& dy,
                                  const SavedProduct& saved, variable_list& result) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    if (saved.weight.defined() && !result[0].defined()) {
      const RowScheme scheme{.symmetric = true,
                             .quant_min = ctx->saved_data["weight_quant_min"].toInt(),
                             .quant_max = ctx->saved_data["weight_quant_max"].toInt()};
      const at::Tensor rounded = rounded_weight(saved.weight, saved.weight_scale, scheme, dtype);
      result[0] = input_gradient(dy, connected(rounded, kWeight), saved.offsets);
    }
    if (saved.qinput.defined() && !result[1].defined()) {
      at::Tensor rounded =
          connected(dequantized(saved.qinput, saved.input_scale, saved.input_zero_point,
                                Granularity::kPerToken, dtype),
                    kInput);
      if (saved.mask.defined() && rounded.requires_grad()) {
        rounded = StraightThrough::apply(rounded, saved.mask);
      }
      result[1] = weight_gradient(dy, rounded, saved.offsets);
    }
  }
};

// Whether autograd has anything to record. Forward-mode tangents count: the Function refuses them,
// while a plain call would drop them.
bool is_recorded(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  const bool learned =
      input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad());
  return (at::GradMode::is_enabled() && learned) || has_tangent(input) || has_tangent(weight) ||
         (bias && has_tangent(*bias));
}

at::Tensor qat_linear_autograd(const at::Tensor& input, const at::Tensor& weight,
                               const OptionalTensor& bias, const Schemes& schemes,
                               const BackwardArgs& backward, const GivenWeight& given) {
  const LinearArgs args{
      .op = "baraquant::qat_linear", .input = input, .weight = weight, .bias = bias};
  check_all_dispatchable(args);
  if (given) check_dispatchable(args.op, "qweight", *given.integers);
  if (given.scale) check_scale(args.op, "weight_scale", *given.scale);
  if (is_recorded(input, weight, bias)) {
    check_backward(args, backward);
    return QatLinear::apply(input, weight, bias, OptionalTensor(), schemes, backward,
                            given.integers, given.scale);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_linear(input, weight, bias, schemes, backward, given);
}

at::Tensor qat_grouped_linear_autograd(const at::Tensor& input, const at::Tensor& weight,
                                       const at::Tensor& offsets, const OptionalTensor& bias,
                                       const Schemes& schemes, const BackwardArgs& backward) {
  const LinearArgs args{.op = "baraquant::qat_grouped_linear",
                        .input = input,
                        .weight = weight,
                        .bias = bias,
                        .offsets = &offsets};
  check_all_dispatchable(args);
  if (is_recorded(input, weight, bias)) {
    check_backward(args, backward);
    return QatLinear::apply(input, weight, bias, OptionalTensor(offsets), schemes, backward,
                            OptionalTensor(), OptionalTensor());
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_grouped_linear(input, weight, offsets, bias, schemes, backward);
}

void refuse_to_record(const char* op, const at::Tensor& input, const at::Tensor& weight) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad())), op,
      ": the form that returns what is kept is not differentiable; call the op itself");
}

KeptByQatLinear qat_linear_kept_autograd(const at::Tensor& input, const at::Tensor& weight,
                                         const OptionalTensor& bias, const Schemes& schemes,
                                         bool with_mask, const GivenWeight& given) {
  refuse_to_record("baraquant::qat_linear", input, weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_linear_kept(input, weight, bias, schemes, with_mask, given);
}

KeptByQatLinear qat_grouped_linear_kept_autograd(const at::Tensor& input, const at::Tensor& weight,
                                                 const at::Tensor& offsets,
                                                 const OptionalTensor& bias, const Schemes& schemes,
                                                 bool with_mask) {
  refuse_to_record("baraquant::qat_grouped_linear", input, weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_grouped_linear_kept(input, weight, offsets, bias, schemes, with_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("qat_linear", kernel_of<&qat_linear_autograd>);
  m.impl("_qat_linear_kept", kernel_of<&qat_linear_kept_autograd>);
  m.impl("qat_grouped_linear", kernel_of<&qat_grouped_linear_autograd>);
  m.impl("_qat_grouped_linear_kept", kernel_of<&qat_grouped_linear_kept_autograd>);
}

}  // namespace baraquant::int8_mm
