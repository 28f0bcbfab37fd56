// SPDX-License-Identifier: BSD-3-Clause
// Autograd of the integer matrix family. A served layer, whose weight is integers already, has the
// gradients of
//   linear(fake_quantize(x), w^, b)
// where the rounding of x passes gradients straight through (Bengio et al. 2013):
//   dx = inside ? dy @ w^ : 0,   db = sum of dy over tokens
// The input of qat_linear has the same gradient, so a served layer passes on what the trained one
// did. A symmetric scale from the data clips nothing. Any other scale keeps one bit for each element
// of x (`inside`). The weight takes no memory here, as its layer holds it. With smooth_scale, which
// is act_scale * smooth, the op divides x by smooth, so dx is divided too.
// Integers have no gradient: int8_linear and smoothquant_linear have one in the bias only, and
// int8_product and rescale_product have none.
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/recorded.h"
#include "frame/saved_tensors.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/gradients.h"
#include "int8_mm/grouped_products.h"
#include "int8_mm/integer_backward.h"
#include "scaled/core_ops.h"

namespace baraquant::int8_mm {
namespace {

using Keys = c10::DispatchKeySet;

// ---- Ops whose weight is integers ---------------------------------------------------------------

// What the gradient of the input is made of: the scales of the input of a layer that divides it by
// `smooth`, the offsets of a grouped op, and the mask of one that clips the input.
struct SavedLayer {
  at::Tensor weight = {}, weight_scale = {}, act_scale = {}, smooth_scale = {};
  at::Tensor offsets = {}, mask = {};
  auto fields() { return std::tie(weight, weight_scale, act_scale, smooth_scale, offsets, mask); }
};

// Computes the output below autograd; given true, the mask too.
using Product = c10::function_ref<MaskedProduct(bool)>;

at::Tensor input_gradient(const at::Tensor& dy, const SavedLayer& saved, at::ScalarType dtype) {
  const at::Tensor rounded =
      dequantized(saved.weight, saved.weight_scale, {}, Granularity::kPerChannel, dtype);
  at::Tensor dx = int8_mm::input_gradient(dy.to(dtype), rounded, saved.offsets);
  if (saved.smooth_scale.defined()) {
    dx = at::mul(dx, at::div(saved.act_scale, saved.smooth_scale)).to(dtype);
  }
  return saved.mask.defined() ? clip_gradient(dx, saved.mask, dtype) : dx;
}

struct Linear : Function<Linear> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& bias,
                          const SavedLayer& layer, bool clips_input, const Product& product) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool input_grad = input.requires_grad();
    const auto [output, mask] = product(input_grad && clips_input);
    SavedLayer saved{.offsets = layer.offsets};
    if (input_grad) saved = layer, saved.mask = mask;
    save_tensors(ctx, saved);
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    if (bias) ctx->saved_data["bias_dtype"] = static_cast<int64_t>(bias->scalar_type());
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // A backward inside of autocast's region computes in the same dtypes as one outside.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto dtype_of = [ctx](const char* name) {
      return static_cast<at::ScalarType>(ctx->saved_data[name].toInt());
    };
    const auto saved = saved_tensors<SavedLayer>(ctx);
    variable_list result(5);
    if (ctx->needs_input_grad(0)) {
      result[0] = input_gradient(grads[0], saved, dtype_of("dtype"));
    }
    if (ctx->saved_data.count("bias_dtype") && ctx->needs_input_grad(1)) {
      result[1] = bias_gradient(grads[0], dtype_of("bias_dtype"), saved.offsets);
    }
    return result;
  }
};

SavedLayer layer_of(const LinearArgs& args) {
  SavedLayer layer{.weight = args.weight, .weight_scale = *args.weight_scale};
  if (args.smooth_scale) {
    layer.act_scale = *args.qparams.scale;
    layer.smooth_scale = *args.smooth_scale;
  }
  if (args.offsets) layer.offsets = *args.offsets;
  return layer;
}

template <typename Call>
const char* overload_of() {
  if constexpr (requires { Call::kOverload; }) return Call::kOverload;
  return "";
}

// Calls an op below autograd; if the mask is wanted, its form that returns the mask too, of the same
// arguments. An op that clips nothing has no such form.
template <typename Call>
MaskedProduct below_autograd(Keys keys, const Call& call, bool with_mask = false) {
  static const CoreOp<at::Tensor(const Call&)> op(Call::kOp, overload_of<Call>());
  const at::AutoDispatchBelowADInplaceOrView guard;
  if constexpr (requires { Call::kMaskedOp; }) {
    static const CoreOp<MaskedProduct(const Call&)> masked_op(Call::kMaskedOp);
    if (with_mask) return masked_op(call);
  }
  return {op.redispatch(keys & c10::after_autograd_keyset, call), {}};
}

bool is_recorded_call(const LinearArgs& args) {
  return is_recorded(args.input) || (args.bias && is_recorded(*args.bias));
}

template <typename Call>
at::Tensor linear_autograd(Keys keys, const Call& call) {
  const LinearArgs args = linear(call);
  check_constants(args);
  if (!is_recorded_call(args)) return std::get<0>(below_autograd(keys, call));
  const auto product = [&](bool with_mask) { return below_autograd(keys, call, with_mask); };
  const bool clips_input = args.kind == Kind::kStatic || !args.scheme.symmetric;
  return Linear::apply(call.input, call.bias, layer_of(args), clips_input, Product(product));
}

// A call that autograd records is the op for int8 with the expanded weight, which is kept for the
// backward pass.
template <typename Call>
at::Tensor int4_autograd(Keys keys, const Call& call) {
  const LinearArgs args = linear(call);
  check_constants(args);
  if (!is_recorded_call(args)) return std::get<0>(below_autograd(keys, call));
  check_arguments(args);
  const at::Tensor weight = int4::expand_int4(
      {call.packed, call.group_factor, call.group_size, args.depth(), call.group_zero_point});
  using Expanded = decltype(call.with(weight));
  static const CoreOp<at::Tensor(const Expanded&)> expanded_op(Expanded::kOp);
  return expanded_op(call.with(weight));
}

template <typename Calls>
std::vector<at::Tensor> several_autograd(Keys keys, const Calls& calls) {
  return linears_autograd(keys, calls, [](const auto& call) {
    const LinearArgs args = linear(call);
    check_constants(args);
    return is_recorded_call(args);
  });
}

// An op without a gradient.
template <typename Call>
at::Tensor constant_autograd(Keys keys, const Call& call) {
  check_constants(linear(call));
  return std::get<0>(below_autograd(keys, call));
}

// Linear and Trained call the forms that return what a backward needs, below autograd. Nobody else
// differentiates them.
void refuse_to_record(const c10::OperatorHandle& op, Keys keys, torch::jit::Stack* stack) {
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    TORCH_CHECK_NOT_IMPLEMENTED(!value.isTensor() || !is_recorded(value.toTensor()),
                                op.schema().name(),
                                ": the form that returns what a backward needs is not "
                                "differentiable; call the op itself");
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// ---- qat_linear and qat_grouped_linear ----------------------------------------------------------
// The gradients of
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

// The identity, whose gradient is 0 where the mask has a 0.
struct StraightThrough : Function<StraightThrough> {
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

struct Trained : Function<Trained> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& offsets,
                          const Schemes& schemes, const BackwardArgs& backward,
                          const OptionalTensor& given_qweight, const OptionalTensor& given_scale) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool symmetric = schemes.symmetric;
    const bool input_grad = input.requires_grad(), weight_grad = weight.requires_grad();
    const bool with_mask = input_grad && !symmetric;
    const GivenWeight given{given_qweight, given_scale};
    auto [output, qinput, input_scale, input_zero_point, mask, qweight, weight_scale] =
        offsets ? qat_grouped_linear_kept({input, {weight, *offsets}, bias, schemes}, with_mask)
                : qat_linear_kept({input, weight, bias, schemes}, with_mask, given);
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
    ctx->saved_data["weight_quant_min"] = schemes.weight_quant_min;
    ctx->saved_data["weight_quant_max"] = schemes.weight_quant_max;
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
      result[0] = int8_mm::input_gradient(dy, connected(rounded, kWeight), saved.offsets);
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

// Checks a call; returns whether autograd has anything to record.
template <typename Weight>
bool is_trained(const QatLinearOf<Weight>& call, const BackwardArgs& backward,
                const GivenWeight& given = {}) {
  const LinearArgs args = linear(call);
  check_all_dispatchable(args);
  if (given) check_dispatchable(args.op, "qweight", *given.integers);
  if (given.scale) check_constant(args.op, "weight_scale", *given.scale);
  if (!is_recorded_call(args) && !is_recorded(args.weight)) return false;
  check_backward(args, backward);
  return true;
}

at::Tensor qat_linear_autograd(const QatLinear& call, const BackwardArgs& backward,
                               const GivenWeight& given) {
  if (is_trained(call, backward, given)) {
    return Trained::apply(call.input, call.weight, call.bias, kNoTensor, call.schemes, backward,
                          given.integers, given.scale);
  }
  return qat_linear.below_autograd(call, backward, given);
}

at::Tensor qat_grouped_linear_autograd(const QatGroupedLinear& call, const BackwardArgs& backward) {
  if (is_trained(call, backward)) {
    const OptionalTensor offsets(call.weight.offsets);
    return Trained::apply(call.input, call.weight.values, call.bias, offsets, call.schemes,
                          backward, kNoTensor, kNoTensor);
  }
  return qat_grouped_linear.below_autograd(call, backward);
}

// ---- Products of a backward pass ----------------------------------------------------------------

Gradients integer_backward_autograd(const at::Tensor& grad, const IntegerBackwardArgs& args) {
  integer_backward.check_dispatchable(grad, args);
  TORCH_CHECK_NOT_IMPLEMENTED(!requires_grad(grad), "baraquant::_integer_backward",
                              ": a gradient that is rounded to integers cannot be differentiated");
  return integer_backward.below_autograd(grad, args);
}

// Returns for each row the vector of its group, from vectors [E, A], and 0 after the last group.
at::Tensor spread(const at::Tensor& vectors, const at::Tensor& offsets, const c10::SymInt& rows) {
  const at::Tensor index = at::arange(at::Scalar(rows), offsets.options());
  const at::Tensor ends = std::get<0>(at::cummax(offsets, 0));
  const at::Tensor none = at::zeros_symint({1, vectors.sym_size(1)}, vectors.options());
  return at::cat({vectors, none}).index_select(0, at::bucketize(index, ends, false, true));
}

struct SavedPair {
  at::Tensor left, right, offsets;
  auto fields() { return std::tie(left, right, offsets); }
};

// grouped_outer, or else grouped_matmul.
template <bool outer>
struct GroupedProduct : Function<GroupedProduct<outer>> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& left, const at::Tensor& right,
                          const at::Tensor& offsets) {
    save_tensors(ctx, SavedPair{.left = left, .right = right, .offsets = offsets});
    return outer ? grouped_outer.below_autograd(left, right, offsets)
                 : grouped_matmul.below_autograd(left, right, offsets);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto [left, right, offsets] = saved_tensors<SavedPair>(ctx);
    const at::Tensor& grad = grads[0];
    variable_list result(3);
    if (ctx->needs_input_grad(0)) {
      result[0] = outer ? grouped_matmul(right, grad.transpose(1, 2), offsets)
                        : grouped_matmul(grad, right.transpose(1, 2), offsets);
    }
    if (ctx->needs_input_grad(1)) {
      result[1] = outer ? grouped_matmul(left, grad, offsets) : grouped_outer(left, grad, offsets);
    }
    return result;
  }
};

struct SavedOffsets {
  at::Tensor offsets;
  auto fields() { return std::tie(offsets); }
};

struct GroupedSum : Function<GroupedSum> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& offsets,
                          at::ScalarType dtype) {
    save_tensors(ctx, SavedOffsets{offsets});
    ctx->saved_data["dtype"] = static_cast<int64_t>(rows.scalar_type());
    ctx->saved_data["rows"] = rows.sym_size(0);
    return grouped_sum.below_autograd(rows, offsets, dtype);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const c10::SymInt rows = ctx->saved_data["rows"].toSymInt();
    return {spread(grads[0], saved_tensors<SavedOffsets>(ctx).offsets, rows).to(dtype), {}, {}};
  }
};

template <bool outer>
at::Tensor grouped_product_autograd(const at::Tensor& left, const at::Tensor& right,
                                    const at::Tensor& offsets) {
  return GroupedProduct<outer>::apply(left, right, offsets);
}

at::Tensor grouped_sum_autograd(const at::Tensor& rows, const at::Tensor& offsets,
                                at::ScalarType dtype) {
  return GroupedSum::apply(rows, offsets, dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("int8_linear", kernel_of<&linear_autograd<Int8Linear>>);
  m.impl("int8_grouped_linear", kernel_of<&linear_autograd<Int8GroupedLinear>>);
  m.impl("int8_product", kernel_of<&constant_autograd<Int8Product>>);
  m.impl("rescale_product", kernel_of<&constant_autograd<RescaleProduct>>);
  m.impl("smoothquant_linear", kernel_of<&linear_autograd<SmoothquantLinear>>);
  m.impl("smoothquant_linear.number", kernel_of<&linear_autograd<SmoothquantLinearNumber>>);
  m.impl("quantized_linear", kernel_of<&linear_autograd<QuantizedLinear>>);
  m.impl("quantized_grouped_linear", kernel_of<&linear_autograd<QuantizedGroupedLinear>>);
  m.impl("static_quantized_linear", kernel_of<&linear_autograd<StaticQuantizedLinear>>);
  for (const char* op :
       {QuantizedLinear::kMaskedOp, QuantizedGroupedLinear::kMaskedOp,
        StaticQuantizedLinear::kMaskedOp, "_qat_linear_kept", "_qat_grouped_linear_kept"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_to_record>());
  }
  m.impl("int4_linear", kernel_of<&int4_autograd<Int4Linear>>);
  m.impl("_int8_linears", kernel_of<&several_autograd<Int8Linears>>);
  m.impl("_int4_linears", kernel_of<&several_autograd<Int4Linears>>);
  m.impl("quantized_int4_linear", kernel_of<&int4_autograd<QuantizedInt4Linear>>);
  m.impl("static_quantized_int4_linear", kernel_of<&int4_autograd<StaticQuantizedInt4Linear>>);
  m.impl("qat_linear", kernel_of<&qat_linear_autograd>);
  m.impl("qat_grouped_linear", kernel_of<&qat_grouped_linear_autograd>);
  m.impl("_integer_backward", kernel_of<&integer_backward_autograd>);
  m.impl("_grouped_matmul", &grouped_product_autograd</*outer=*/false>);
  m.impl("_grouped_outer", &grouped_product_autograd</*outer=*/true>);
  m.impl("_grouped_sum", &grouped_sum_autograd);
}
TORCH_LIBRARY_IMPL(baraquant, FuncTorchVmapMode, m) {
  m.impl("_int8_linears", kernel_of<&one_by_one<Int8Linears>>);
  m.impl("_int4_linears", kernel_of<&one_by_one<Int4Linears>>);
}

}  // namespace baraquant::int8_mm
