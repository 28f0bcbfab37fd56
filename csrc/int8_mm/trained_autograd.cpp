// SPDX-License-Identifier: BSD-3-Clause
// qat_linear, qat_grouped_linear and autograd: the gradients of
//   linear(dynamic_fake_quantize_per_token(x, quant_min, quant_max),
//          dynamic_fake_quantize_per_channel(w, 0, weight_quant_min, weight_quant_max), b)
// where the roundings pass gradients straight through (Bengio et al. 2013):
//   dx = inside ? dy @ w^ : 0,   dw = dy^T @ x^,   db = sum of dy over tokens
// x^ and w^ are the rounded numbers. x^ comes from the integers, which are kept: one byte for each
// element, and a bit (`inside`) where the input's scheme is asymmetric. So does w^, but where the
// weight is alive anyway (a parameter): then it is rounded again, and only its scales are kept. The
// weight's scheme is symmetric around 0, and then the scale never clips, whatever the range: of
// |x| <= quant_max * s the quotient x / s is rounded to quant_max at most.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/dtypes.h"
#include "frame/saved_tensors.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/gradients.h"

namespace baraquant::int8_mm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Passes numbers on as they are, and their gradient where they lay inside the range.
class StraightThrough : public Function<StraightThrough> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& value, const at::Tensor& mask) {
    ctx->save_for_backward({mask});
    ctx->saved_data["dtype"] = static_cast<int64_t>(value.scalar_type());
    return value;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {clip_gradient(grads[0], ctx->get_saved_variables()[0], dtype), {}};
  }
};

// Note [Double backward]
// Gradients of gradients need x^ and w^ as functions of x and w, which are not kept. But the
// rounded numbers depend on them straight through: once computed anew, they are put where x or w
// itself stands in the graph, which is where the node that is running sends that argument's
// gradient.
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

// w^, from what was kept of it: its integers, or itself.
at::Tensor rounded_weight(const at::Tensor& kept, const at::Tensor& scale, const RowScheme& scheme,
                          at::ScalarType dtype) {
  if (kept.scalar_type() == at::kChar) {
    return dequantized(kept, scale, {}, Granularity::kPerChannel, dtype);
  }
  static const OptionalTensor none;
  const OptionalTensor s(scale.flatten());
  affine::QuantArgs q{s, none};
  q.granularity = Granularity::kPerChannel;
  q.axis = 0;
  q.quant_min = scheme.quant_min;
  q.quant_max = scheme.quant_max;
  return by_rows(kept.detach(), [&](const at::Tensor& rows) {
    return affine::fake_quantize(rows, q, std::nullopt);
  });
}

class QatLinear : public Function<QatLinear> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& offsets,
                          const Schemes& schemes) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool symmetric = schemes.input.symmetric;
    const bool input_grad = input.requires_grad(), weight_grad = weight.requires_grad();
    const bool with_mask = input_grad && !symmetric;
    auto [output, qinput, input_scale, input_zero_point, mask, qweight, weight_scale] =
        offsets ? qat_grouped_linear_kept(input, weight, *offsets, bias, schemes, with_mask)
                : qat_linear_kept(input, weight, bias, schemes, with_mask);
    const at::Tensor none;
    ctx->save_for_backward({weight_grad ? qinput : none, weight_grad ? input_scale : none,
                            weight_grad && !symmetric ? input_zero_point : none,
                            with_mask ? mask : none,
                            !input_grad                                         ? none
                            : is_alive_anyway(weight) || is_graph_input(weight) ? weight
                                                                                : qweight,
                            input_grad ? weight_scale : none, offsets ? *offsets : none});
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["weight_quant_min"] = schemes.weight.quant_min;
    ctx->saved_data["weight_quant_max"] = schemes.weight.quant_max;
    if (bias) ctx->saved_data["bias_dtype"] = static_cast<int64_t>(bias->scalar_type());
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &dy = grads[0], &qinput = saved[0], &mask = saved[3], &weight = saved[4];
    const at::Tensor& offsets = saved[6];
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    variable_list result(5);
    if (weight.defined()) {
      const RowScheme scheme{/*symmetric=*/true, ctx->saved_data["weight_quant_min"].toInt(),
                             ctx->saved_data["weight_quant_max"].toInt()};
      const at::Tensor rounded = rounded_weight(weight, saved[5], scheme, dtype);
      const at::Tensor dx = input_gradient(dy, connected(rounded, kWeight), offsets);
      result[0] = mask.defined() ? clip_gradient(dx, mask, dtype) : dx;
    }
    if (qinput.defined()) {
      at::Tensor rounded =
          connected(dequantized(qinput, saved[1], saved[2], Granularity::kPerToken, dtype), kInput);
      if (mask.defined() && rounded.requires_grad()) {
        rounded = StraightThrough::apply(rounded, mask);
      }
      result[1] = weight_gradient(dy, rounded, offsets);
    }
    if (ctx->saved_data.count("bias_dtype") && ctx->needs_input_grad(2)) {
      const auto bias_dtype = static_cast<at::ScalarType>(ctx->saved_data["bias_dtype"].toInt());
      result[2] = bias_gradient(dy, bias_dtype, offsets);
    }
    return result;
  }
};

// Whether autograd has something to record. Forward-mode tangents are refused by the Function, not
// dropped.
bool is_recorded(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  const bool learned =
      input.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad());
  return (at::GradMode::is_enabled() && learned) || has_tangent(input) || has_tangent(weight) ||
         (bias && has_tangent(*bias));
}

at::Tensor qat_linear_autograd(const at::Tensor& input, const at::Tensor& weight,
                               const OptionalTensor& bias, const Schemes& schemes) {
  check_all_dispatchable({"baraquant::qat_linear", input, weight, nullptr, bias, nullptr});
  if (is_recorded(input, weight, bias)) {
    return QatLinear::apply(input, weight, bias, OptionalTensor(), schemes);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_linear(input, weight, bias, schemes);
}

at::Tensor qat_grouped_linear_autograd(const at::Tensor& input, const at::Tensor& weight,
                                       const at::Tensor& offsets, const OptionalTensor& bias,
                                       const Schemes& schemes) {
  check_all_dispatchable(
      {"baraquant::qat_grouped_linear", input, weight, nullptr, bias, nullptr, &offsets});
  if (is_recorded(input, weight, bias)) {
    return QatLinear::apply(input, weight, bias, OptionalTensor(offsets), schemes);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_grouped_linear(input, weight, offsets, bias, schemes);
}

void refuse_to_record(const char* op, const at::Tensor& input, const at::Tensor& weight) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad())), op,
      ": the form that returns what is kept is not differentiable; call the op itself");
}

KeptByQatLinear qat_linear_kept_autograd(const at::Tensor& input, const at::Tensor& weight,
                                         const OptionalTensor& bias, const Schemes& schemes,
                                         bool with_mask) {
  refuse_to_record("baraquant::qat_linear", input, weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return qat_linear_kept(input, weight, bias, schemes, with_mask);
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
  m.impl("qat_linear", &Flat<&qat_linear_autograd>::kernel);
  m.impl("_qat_linear_kept", &Flat<&qat_linear_kept_autograd>::kernel);
  m.impl("qat_grouped_linear", &Flat<&qat_grouped_linear_autograd>::kernel);
  m.impl("_qat_grouped_linear_kept", &Flat<&qat_grouped_linear_kept_autograd>::kernel);
}

}  // namespace baraquant::int8_mm
