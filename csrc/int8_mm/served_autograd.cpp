// SPDX-License-Identifier: BSD-3-Clause
// Autograd of the products whose weight is integers already: the gradients of
//   linear(fake_quantize(x), w^, b)
// where the rounding of x passes gradients straight through (Bengio et al. 2013):
//   dx = inside ? dy @ w^ : 0,   db = sum of dy over tokens
// The input of qat_linear has the same gradient, so a served layer passes on what the trained one
// did. A symmetric scale from the data clips nothing. Any other scale keeps one bit for each element
// of x (`inside`). The weight takes no memory here, as its layer holds it. With smooth_scale, which
// is act_scale * smooth, the op divides x by smooth, so dx is divided too.
// Integers have no gradient: int8_linear and smoothquant_linear have one in the bias only, and
// int8_product and rescale_product have none.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/core_op.h"
#include "frame/saved_tensors.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/gradients.h"
#include "int8_mm/served_checks.h"

namespace baraquant::int8_mm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the gradient of the input is made of.
struct Layer {
  at::Tensor weight, weight_scale;
  bool clips_input = false;
  at::Tensor act_scale = {}, smooth_scale = {};  // of a layer that divides its input by `smooth`
  at::Tensor offsets = {};                       // of a grouped op
};

// Computes the output below autograd; given true, the mask too.
using Product = c10::function_ref<MaskedProduct(bool)>;

struct SavedLayer {
  at::Tensor weight = {}, weight_scale = {}, act_scale = {}, smooth_scale = {};
  at::Tensor offsets = {}, mask = {};
  auto fields() { return std::tie(weight, weight_scale, act_scale, smooth_scale, offsets, mask); }
};

at::Tensor input_gradient(const at::Tensor& dy, const SavedLayer& saved, at::ScalarType dtype) {
  const at::Tensor rounded =
      dequantized(saved.weight, saved.weight_scale, {}, Granularity::kPerChannel, dtype);
  at::Tensor dx = int8_mm::input_gradient(dy.to(dtype), rounded, saved.offsets);
  if (saved.smooth_scale.defined()) {
    dx = at::mul(dx, at::div(saved.act_scale, saved.smooth_scale)).to(dtype);
  }
  return saved.mask.defined() ? clip_gradient(dx, saved.mask, dtype) : dx;
}

class Linear : public Function<Linear> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& bias,
                          const Layer& layer, const Product& product) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool input_grad = input.requires_grad();
    const auto [output, mask] = product(input_grad && layer.clips_input);
    SavedLayer saved{.offsets = layer.offsets};
    if (input_grad) {
      saved.weight = layer.weight;
      saved.weight_scale = layer.weight_scale;
      if (layer.smooth_scale.defined()) saved.act_scale = layer.act_scale;
      saved.smooth_scale = layer.smooth_scale;
      saved.mask = mask;
    }
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
    variable_list result(4);
    if (ctx->needs_input_grad(0)) {
      result[0] = input_gradient(grads[0], saved, dtype_of("dtype"));
    }
    if (ctx->saved_data.count("bias_dtype") && ctx->needs_input_grad(1)) {
      result[1] = bias_gradient(grads[0], dtype_of("bias_dtype"), saved.offsets);
    }
    return result;
  }
};

at::Tensor differentiable(const at::Tensor& input, const OptionalTensor& bias, const Layer& layer,
                          const Product& product) {
  if (is_recorded(input) || (bias && is_recorded(*bias))) {
    return Linear::apply(input, bias, layer, product);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return std::get<0>(product(false));
}

using Keys = c10::DispatchKeySet;
using Dtype = std::optional<at::ScalarType>;

// An op, called below autograd, and its form that returns the mask too, of the same arguments.
template <typename... Args>
class Masked {
 public:
  explicit Masked(const std::string& name)
      : plain_(("baraquant::" + name).c_str()),
        with_mask_(("baraquant::_" + name + "_with_mask").c_str()) {}

  MaskedProduct operator()(Keys keys, bool with_mask, Args... args) const {
    if (with_mask) return with_mask_(args...);
    return {plain_.redispatch(keys & c10::after_autograd_keyset, args...), {}};
  }

 private:
  CoreOp<at::Tensor(Args...)> plain_;
  CoreOp<MaskedProduct(Args...)> with_mask_;
};

at::Tensor quantized_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& weight_scale, const OptionalTensor& bias,
                            bool symmetric, const OptionalTensor& weight_sum, int64_t quant_min,
                            int64_t quant_max, Dtype dtype) {
  static const Masked<const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const OptionalTensor&, bool, const OptionalTensor&, int64_t, int64_t, Dtype>
      op("quantized_linear");
  constexpr const char* kOp = "baraquant::quantized_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum});
  check_scale(kOp, "weight_scale", weight_scale);
  const Layer layer{.weight = weight, .weight_scale = weight_scale, .clips_input = !symmetric};
  return differentiable(input, bias, layer, [&](bool with_mask) {
    return op(keys, with_mask, input, weight, weight_scale, bias, symmetric, weight_sum, quant_min,
              quant_max, dtype);
  });
}

at::Tensor quantized_grouped_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& offsets, const at::Tensor& weight_scale,
                                    const OptionalTensor& bias, bool symmetric,
                                    const OptionalTensor& weight_sum, int64_t quant_min,
                                    int64_t quant_max, Dtype dtype) {
  static const Masked<const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const OptionalTensor&, bool, const OptionalTensor&, int64_t, int64_t, Dtype>
      op("quantized_grouped_linear");
  constexpr const char* kOp = "baraquant::quantized_grouped_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum,
                          .offsets = &offsets});
  check_scale(kOp, "weight_scale", weight_scale);
  const Layer layer{.weight = weight,
                    .weight_scale = weight_scale,
                    .clips_input = !symmetric,
                    .offsets = offsets};
  return differentiable(input, bias, layer, [&](bool with_mask) {
    return op(keys, with_mask, input, weight, offsets, weight_scale, bias, symmetric, weight_sum,
              quant_min, quant_max, dtype);
  });
}

at::Tensor static_quantized_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& weight_scale, const at::Tensor& act_scale,
                                   const OptionalTensor& bias, const OptionalTensor& act_zero_point,
                                   const OptionalTensor& smooth_scale,
                                   const OptionalTensor& weight_sum, int64_t quant_min,
                                   int64_t quant_max, Dtype dtype) {
  static const Masked<const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                      const OptionalTensor&, int64_t, int64_t, Dtype>
      op("static_quantized_linear");
  constexpr const char* kOp = "baraquant::static_quantized_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum});
  check_scale(kOp, "weight_scale", weight_scale);
  check_scale(kOp, "act_scale", act_scale);
  check_zero_point(kOp, "act_zero_point", act_zero_point);
  if (smooth_scale) check_scale(kOp, "smooth_scale", *smooth_scale);
  const Layer layer{.weight = weight,
                    .weight_scale = weight_scale,
                    .clips_input = true,
                    .act_scale = act_scale,
                    .smooth_scale = smooth_scale.value_or(at::Tensor())};
  return differentiable(input, bias, layer, [&](bool with_mask) {
    return op(keys, with_mask, input, weight, weight_scale, act_scale, bias, act_zero_point,
              smooth_scale, weight_sum, quant_min, quant_max, dtype);
  });
}

at::Tensor int8_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& input_scale, const at::Tensor& weight_scale,
                       const OptionalTensor& bias, const OptionalTensor& input_zero_point,
                       const OptionalTensor& weight_sum, at::ScalarType dtype) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, at::ScalarType)>
      op("baraquant::int8_linear");
  constexpr const char* kOp = "baraquant::int8_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum});
  check_scale(kOp, "input_scale", input_scale);
  check_scale(kOp, "weight_scale", weight_scale);
  check_zero_point(kOp, "input_zero_point", input_zero_point);
  const Layer layer{.weight = weight, .weight_scale = weight_scale};
  return differentiable(input, bias, layer, [&](bool) -> MaskedProduct {
    return {op.redispatch(keys & c10::after_autograd_keyset, input, weight, input_scale,
                          weight_scale, bias, input_zero_point, weight_sum, dtype),
            {}};
  });
}

at::Tensor int8_grouped_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& offsets, const at::Tensor& input_scale,
                               const at::Tensor& weight_scale, const OptionalTensor& bias,
                               const OptionalTensor& input_zero_point,
                               const OptionalTensor& weight_sum, at::ScalarType dtype) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, at::ScalarType)>
      op("baraquant::int8_grouped_linear");
  constexpr const char* kOp = "baraquant::int8_grouped_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum,
                          .offsets = &offsets});
  check_scale(kOp, "input_scale", input_scale);
  check_scale(kOp, "weight_scale", weight_scale);
  check_zero_point(kOp, "input_zero_point", input_zero_point);
  const Layer layer{.weight = weight, .weight_scale = weight_scale, .offsets = offsets};
  return differentiable(input, bias, layer, [&](bool) -> MaskedProduct {
    return {op.redispatch(keys & c10::after_autograd_keyset, input, weight, offsets, input_scale,
                          weight_scale, bias, input_zero_point, weight_sum, dtype),
            {}};
  });
}

// act_scale and act_zero_point are tensors, or numbers.
template <typename Scale, typename ZeroPoint>
at::Tensor smoothquant_linear(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& weight_scale, Scale act_scale,
                              const OptionalTensor& bias, ZeroPoint act_zero_point,
                              const OptionalTensor& weight_sum, at::ScalarType dtype) {
  constexpr bool is_number = std::is_same_v<Scale, double>;
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, Scale,
                                 const OptionalTensor&, ZeroPoint, const OptionalTensor&,
                                 at::ScalarType)>
      op("baraquant::smoothquant_linear", is_number ? "number" : "");
  constexpr const char* kOp = "baraquant::smoothquant_linear";
  check_all_dispatchable({.op = kOp,
                          .input = input,
                          .weight = weight,
                          .weight_scale = &weight_scale,
                          .bias = bias,
                          .weight_sum = &weight_sum});
  check_scale(kOp, "weight_scale", weight_scale);
  if constexpr (!is_number) {
    check_scale(kOp, "act_scale", act_scale);
    check_zero_point(kOp, "act_zero_point", act_zero_point);
  }
  const Layer layer{.weight = weight, .weight_scale = weight_scale};
  return differentiable(input, bias, layer, [&](bool) -> MaskedProduct {
    return {op.redispatch(keys & c10::after_autograd_keyset, input, weight, weight_scale, act_scale,
                          bias, act_zero_point, weight_sum, dtype),
            {}};
  });
}

at::Tensor int8_product(Keys keys, const at::Tensor& input, const at::Tensor& weight,
                        const OptionalTensor& input_zero_point, const OptionalTensor& weight_sum) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                 const OptionalTensor&)>
      op("baraquant::int8_product");
  constexpr const char* kOp = "baraquant::int8_product";
  const OptionalTensor no_bias;
  check_all_dispatchable(
      {.op = kOp, .input = input, .weight = weight, .bias = no_bias, .weight_sum = &weight_sum});
  check_zero_point(kOp, "input_zero_point", input_zero_point);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, input, weight, input_zero_point,
                       weight_sum);
}

at::Tensor rescale_product(Keys keys, const at::Tensor& input, const at::Tensor& input_scale,
                           const at::Tensor& weight_scale, const OptionalTensor& bias,
                           at::ScalarType dtype) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const OptionalTensor&, at::ScalarType)>
      op("baraquant::rescale_product");
  constexpr const char* kOp = "baraquant::rescale_product";
  check_all_dispatchable(
      {.op = kOp, .input = input, .weight = input, .weight_scale = &weight_scale, .bias = bias});
  check_scale(kOp, "input_scale", input_scale);
  check_scale(kOp, "weight_scale", weight_scale);
  if (bias) check_scale(kOp, "bias", *bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, input, input_scale, weight_scale, bias,
                       dtype);
}

// Linear calls the forms that return the mask, below autograd. Nobody else differentiates them.
void refuse_to_record(const c10::OperatorHandle& op, Keys keys, torch::jit::Stack* stack) {
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    TORCH_CHECK_NOT_IMPLEMENTED(!value.isTensor() || !is_recorded(value.toTensor()),
                                op.schema().name(),
                                ": the form that returns the mask is not differentiable; call the "
                                "op itself");
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("quantized_linear", &quantized_linear);
  m.impl("static_quantized_linear", &static_quantized_linear);
  m.impl("int8_linear", &int8_linear);
  m.impl("int8_product", &int8_product);
  m.impl("rescale_product", &rescale_product);
  m.impl("quantized_grouped_linear", &quantized_grouped_linear);
  m.impl("int8_grouped_linear", &int8_grouped_linear);
  m.impl("smoothquant_linear", &smoothquant_linear<const at::Tensor&, const OptionalTensor&>);
  m.impl("smoothquant_linear.number", &smoothquant_linear<double, std::optional<int64_t>>);
  for (const char* op : {"_quantized_linear_with_mask", "_static_quantized_linear_with_mask",
                         "_quantized_grouped_linear_with_mask"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_to_record>());
  }
}

}  // namespace baraquant::int8_mm
