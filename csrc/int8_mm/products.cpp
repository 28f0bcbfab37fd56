// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "affine/core_ops.h"
#include "frame/copies.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int8_mm/multiply.h"

namespace baraquant::int8_mm {
namespace {

// Quantizes rows [tokens, K] to int8, with one scale for all or one for each k, by the ops of the
// affine family.
MaskedProduct quantize_static(const at::Tensor& rows, const at::Tensor& act_scale,
                              const OptionalTensor& act_zero_point,
                              const OptionalTensor& smooth_scale, int64_t quant_min,
                              int64_t quant_max, bool with_mask) {
  const OptionalTensor scale(smooth_scale ? *smooth_scale : act_scale);
  OptionalTensor zero_point = act_zero_point;
  if (zero_point && smooth_scale) zero_point = zero_point->expand({rows.size(1)});
  const affine::QuantArgs q{
      .scale = scale,
      .zero_point = zero_point,
      .scope = smooth_scale ? PerChannel::from_flat(1) : PerTensor::from_flat(),
      .quant_min = quant_min,
      .quant_max = quant_max};
  if (with_mask) return affine::quantize_with_mask(rows, q, at::kChar, /*order=*/{});
  return {affine::quantize(rows, q, at::kChar, /*save_mask=*/std::nullopt), {}};
}

// Of checked arguments.
at::Tensor multiplied(const LinearArgs& args, const InputQparams& q, at::ScalarType dtype) {
  const at::Tensor output = empty_output(args, dtype);
  if (!is_left_to_do(args, output)) return output;
  const at::Tensor no_scale;
  ProductCall call =
      prepare(args, contiguous_rows(args.input),
              {args.weight, args.weight_scale ? *args.weight_scale : no_scale}, output);
  if (q.scale) call.input_scale = of_rows(*q.scale);
  call.input_scale_number = q.scale_number;
  if (q.zero_point && *q.zero_point) call.zero_point = of_rows(cast_to_int32(**q.zero_point));
  call.zero_point_number = static_cast<int32_t>(q.zero_point_number.value_or(0));
  call.has_zero_point = call.zero_point.defined() || call.zero_point_number != 0;
  launch(call, *args.weight_sum);
  return output;
}

}  // namespace

void check_values(const LinearArgs& args) {
  if (!is_planning()) check_offset_values(args);
}

at::Tensor product(const LinearArgs& args, const InputQparams& q, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_product(args, q, dtype);
  check_values(args);
  return multiplied(args, q, dtype);
}

at::Tensor integer_product(const LinearArgs& args, const InputQparams& q) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_integer_product(args, q);
  return multiplied(args, q, at::kInt);
}

at::Tensor rescaled(const LinearArgs& args, const InputQparams& q, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_rescale(args, q, dtype);
  const at::Tensor& sums = args.input;
  const at::Tensor output = at::empty_symint(sums.sym_sizes(), sums.options().dtype(dtype));
  if (!has_work(output)) return output;
  const at::Tensor rows = contiguous_rows(sums);
  RescaleCall call{.sums = rows,
                   .input_scale = of_rows(*q.scale),
                   .weight_scale = contiguous(*args.weight_scale),
                   .bias = {},
                   .output = output.view(rows.sizes())};
  if (args.bias) call.bias = contiguous(cast(*args.bias, compute_dtype(dtype)));
  kernels(sums).rescale(call);
  return output;
}

MaskedProduct quantized_product(bool with_mask, const LinearArgs& args, const RowScheme& scheme,
                                std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& input = args.input;
  const at::ScalarType to = dtype.value_or(input.scalar_type());
  check_quantized_linear(args, scheme, to);
  check_values(args);
  const at::Tensor output = empty_output(args, to);
  if (input.is_meta()) return {output, with_mask ? empty_mask(input) : at::Tensor()};
  if (!with_mask && !is_left_to_do(args, output)) return {output, {}};
  const range::QuantizedRows rows = range::quantize_rows(contiguous_rows(input), scheme, with_mask);
  if (is_left_to_do(args, output)) {
    multiply_quantized(args, rows, {args.weight, *args.weight_scale}, output);
  }
  return {output, rows.mask};
}

MaskedProduct static_product(bool with_mask, const LinearArgs& args, const at::Tensor& act_scale,
                             const OptionalTensor& act_zero_point,
                             const OptionalTensor& smooth_scale, int64_t quant_min,
                             int64_t quant_max, std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& input = args.input;
  const at::ScalarType to = dtype.value_or(input.scalar_type());
  check_static_quantized_linear(args, static_qparams(act_scale, act_zero_point), smooth_scale,
                                quant_min, quant_max, to);
  const at::Tensor output = empty_output(args, to);
  if (input.is_meta()) return {output, with_mask ? empty_mask(input) : at::Tensor()};
  if (!with_mask && !has_work(output)) return {output, {}};
  const auto [rows, mask] = quantize_static(contiguous_rows(input), act_scale, act_zero_point,
                                            smooth_scale, quant_min, quant_max, with_mask);
  if (has_work(output)) {
    ProductCall call = prepare(args, rows, {args.weight, *args.weight_scale}, output);
    call.input_scale = of_rows(act_scale);
    if (act_zero_point) call.zero_point = of_rows(cast_to_int32(*act_zero_point));
    call.has_zero_point = act_zero_point.has_value();
    launch(call, *args.weight_sum);
  }
  return {output, mask};
}

}  // namespace baraquant::int8_mm
