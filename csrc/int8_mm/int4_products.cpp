// SPDX-License-Identifier: BSD-3-Clause
// The products with a weight of four bits: the ops for int8 whose weight is packed numbers
// (int4/schema.cpp). A call that autograd records is the op for int8 with the expanded weight, which
// is kept for the backward pass.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "frame/core_op.h"
#include "int4/core_ops.h"
#include "int8_mm/products.h"
#include "int8_mm/served_checks.h"

namespace baraquant::int8_mm {
namespace {

using Keys = c10::DispatchKeySet;
using Dtype = std::optional<at::ScalarType>;

LinearArgs args_of(const char* op, const at::Tensor& input, const at::Tensor& packed,
                   const at::Tensor& weight_scale, const int4::Groups& groups,
                   const OptionalTensor& bias, const OptionalTensor& weight_sum) {
  return {.op = op,
          .input = input,
          .weight = packed,
          .weight_scale = &weight_scale,
          .bias = bias,
          .weight_sum = &weight_sum,
          .int4 = &groups};
}

at::Tensor int4_linear(const at::Tensor& input, const at::Tensor& packed,
                       const at::Tensor& input_scale, const at::Tensor& weight_scale,
                       const at::Tensor& group_factor, int64_t group_size,
                       const OptionalTensor& bias, const OptionalTensor& group_zero_point,
                       const OptionalTensor& input_zero_point, const OptionalTensor& weight_sum,
                       at::ScalarType dtype) {
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  return product(
      args_of("baraquant::int4_linear", input, packed, weight_scale, groups, bias, weight_sum),
      token_qparams(input_scale, input_zero_point), dtype);
}

at::Tensor quantized_int4_linear(const at::Tensor& input, const at::Tensor& packed,
                                 const at::Tensor& weight_scale, const at::Tensor& group_factor,
                                 int64_t group_size, const OptionalTensor& bias,
                                 const OptionalTensor& group_zero_point, bool symmetric,
                                 const OptionalTensor& weight_sum, int64_t quant_min,
                                 int64_t quant_max, std::optional<at::ScalarType> dtype) {
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  return std::get<0>(quantized_product(
      /*with_mask=*/false,
      args_of("baraquant::quantized_int4_linear", input, packed, weight_scale, groups, bias,
              weight_sum),
      {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max}, dtype));
}

at::Tensor static_quantized_int4_linear(const at::Tensor& input, const at::Tensor& packed,
                                        const at::Tensor& weight_scale,
                                        const at::Tensor& group_factor, int64_t group_size,
                                        const at::Tensor& act_scale, const OptionalTensor& bias,
                                        const OptionalTensor& group_zero_point,
                                        const OptionalTensor& act_zero_point,
                                        const OptionalTensor& smooth_scale,
                                        const OptionalTensor& weight_sum, int64_t quant_min,
                                        int64_t quant_max, std::optional<at::ScalarType> dtype) {
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  return std::get<0>(static_product(
      /*with_mask=*/false,
      args_of("baraquant::static_quantized_int4_linear", input, packed, weight_scale, groups, bias,
              weight_sum),
      act_scale, act_zero_point, smooth_scale, quant_min, quant_max, dtype));
}

// ---- Autograd -----------------------------------------------------------------------------------

bool is_recorded_call(const LinearArgs& args) {
  return is_recorded(args.input) || (args.bias && is_recorded(*args.bias));
}

at::Tensor expanded(const LinearArgs& args) {
  const int4::Groups& groups = *args.int4;
  return int4::expand_int4(
      {args.weight, groups.factor, groups.size, args.depth(), groups.zero_point});
}

at::Tensor int4_linear_autograd(Keys keys, const at::Tensor& input, const at::Tensor& packed,
                                const at::Tensor& input_scale, const at::Tensor& weight_scale,
                                const at::Tensor& group_factor, int64_t group_size,
                                const OptionalTensor& bias, const OptionalTensor& group_zero_point,
                                const OptionalTensor& input_zero_point,
                                const OptionalTensor& weight_sum, at::ScalarType dtype) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const at::Tensor&, int64_t,
                                 const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, at::ScalarType)>
      op("baraquant::int4_linear");
  constexpr const char* kOp = "baraquant::int4_linear";
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  const LinearArgs args = args_of(kOp, input, packed, weight_scale, groups, bias, weight_sum);
  check_all_dispatchable(args);
  check_scale(kOp, "input_scale", input_scale);
  check_scale(kOp, "weight_scale", weight_scale);
  check_zero_point(kOp, "input_zero_point", input_zero_point);
  if (!is_recorded_call(args)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op.redispatch(keys & c10::after_autograd_keyset, input, packed, input_scale,
                         weight_scale, group_factor, group_size, bias, group_zero_point,
                         input_zero_point, weight_sum, dtype);
  }
  check_product(args, token_qparams(input_scale, input_zero_point), dtype);
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, at::ScalarType)>
      expanded_op("baraquant::int8_linear");
  return expanded_op(input, expanded(args), input_scale, weight_scale, bias, input_zero_point,
                     weight_sum, dtype);
}

at::Tensor quantized_int4_linear_autograd(Keys keys, const at::Tensor& input,
                                          const at::Tensor& packed, const at::Tensor& weight_scale,
                                          const at::Tensor& group_factor, int64_t group_size,
                                          const OptionalTensor& bias,
                                          const OptionalTensor& group_zero_point, bool symmetric,
                                          const OptionalTensor& weight_sum, int64_t quant_min,
                                          int64_t quant_max, Dtype dtype) {
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, int64_t, const OptionalTensor&,
                                 const OptionalTensor&, bool, const OptionalTensor&, int64_t,
                                 int64_t, Dtype)>
      op("baraquant::quantized_int4_linear");
  constexpr const char* kOp = "baraquant::quantized_int4_linear";
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  const LinearArgs args = args_of(kOp, input, packed, weight_scale, groups, bias, weight_sum);
  check_all_dispatchable(args);
  check_scale(kOp, "weight_scale", weight_scale);
  if (!is_recorded_call(args)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op.redispatch(keys & c10::after_autograd_keyset, input, packed, weight_scale,
                         group_factor, group_size, bias, group_zero_point, symmetric, weight_sum,
                         quant_min, quant_max, dtype);
  }
  check_quantized_linear(args,
                         {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max},
                         dtype.value_or(input.scalar_type()));
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const OptionalTensor&, bool, const OptionalTensor&, int64_t,
                                 int64_t, Dtype)>
      expanded_op("baraquant::quantized_linear");
  return expanded_op(input, expanded(args), weight_scale, bias, symmetric, weight_sum, quant_min,
                     quant_max, dtype);
}

at::Tensor static_quantized_int4_linear_autograd(
    Keys keys, const at::Tensor& input, const at::Tensor& packed, const at::Tensor& weight_scale,
    const at::Tensor& group_factor, int64_t group_size, const at::Tensor& act_scale,
    const OptionalTensor& bias, const OptionalTensor& group_zero_point,
    const OptionalTensor& act_zero_point, const OptionalTensor& smooth_scale,
    const OptionalTensor& weight_sum, int64_t quant_min, int64_t quant_max, Dtype dtype) {
  static const CoreOp<at::Tensor(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
      const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, int64_t, int64_t, Dtype)>
      op("baraquant::static_quantized_int4_linear");
  constexpr const char* kOp = "baraquant::static_quantized_int4_linear";
  const int4::Groups groups{group_factor, group_zero_point, group_size};
  const LinearArgs args = args_of(kOp, input, packed, weight_scale, groups, bias, weight_sum);
  check_all_dispatchable(args);
  check_scale(kOp, "weight_scale", weight_scale);
  check_scale(kOp, "act_scale", act_scale);
  check_zero_point(kOp, "act_zero_point", act_zero_point);
  if (smooth_scale) check_scale(kOp, "smooth_scale", *smooth_scale);
  if (!is_recorded_call(args)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op.redispatch(keys & c10::after_autograd_keyset, input, packed, weight_scale,
                         group_factor, group_size, act_scale, bias, group_zero_point,
                         act_zero_point, smooth_scale, weight_sum, quant_min, quant_max, dtype);
  }
  check_static_quantized_linear(args, static_qparams(act_scale, act_zero_point), smooth_scale,
                                quant_min, quant_max, dtype.value_or(input.scalar_type()));
  static const CoreOp<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, int64_t, int64_t,
                                 Dtype)>
      expanded_op("baraquant::static_quantized_linear");
  return expanded_op(input, expanded(args), weight_scale, act_scale, bias, act_zero_point,
                     smooth_scale, weight_sum, quant_min, quant_max, dtype);
}

void register_kernels(torch::Library& m) {
  m.impl("int4_linear", &int4_linear);
  m.impl("quantized_int4_linear", &quantized_int4_linear);
  m.impl("static_quantized_int4_linear", &static_quantized_int4_linear);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("int4_linear", &int4_linear_autograd);
  m.impl("quantized_int4_linear", &quantized_int4_linear_autograd);
  m.impl("static_quantized_int4_linear", &static_quantized_int4_linear_autograd);
}

}  // namespace baraquant::int8_mm
