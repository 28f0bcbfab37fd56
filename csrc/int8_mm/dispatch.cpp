// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates, quantizes what is floating and launches the product. Meta stops before the
// launches, so shapes and errors are the same on every device. Outputs are contiguous. A grouped op
// is the plain one with offsets among its LinearArgs.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/multiply.h"
#include "int8_mm/products.h"

namespace baraquant::int8_mm {
namespace {

using range::quantize_rows;
using range::QuantizedRows;

at::Tensor int8_linear(const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& input_scale, const at::Tensor& weight_scale,
                       const OptionalTensor& bias, const OptionalTensor& input_zero_point,
                       const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({.op = "baraquant::int8_linear",
                  .input = input,
                  .weight = weight,
                  .weight_scale = &weight_scale,
                  .bias = bias,
                  .weight_sum = &weight_sum},
                 token_qparams(input_scale, input_zero_point), dtype);
}

at::Tensor int8_product(const at::Tensor& input, const at::Tensor& weight,
                        const OptionalTensor& input_zero_point, const OptionalTensor& weight_sum) {
  const OptionalTensor no_bias;
  return integer_product({.op = "baraquant::int8_product",
                          .input = input,
                          .weight = weight,
                          .bias = no_bias,
                          .weight_sum = &weight_sum},
                         token_zero_points(input_zero_point));
}

at::Tensor rescale_product(const at::Tensor& input, const at::Tensor& input_scale,
                           const at::Tensor& weight_scale, const OptionalTensor& bias,
                           at::ScalarType dtype) {
  const OptionalTensor no_zero_point;
  return rescaled({.op = "baraquant::rescale_product",
                   .input = input,
                   .weight = input,
                   .weight_scale = &weight_scale,
                   .bias = bias,
                   .has_weight = false},
                  token_qparams(input_scale, no_zero_point), dtype);
}

at::Tensor int8_grouped_linear(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& offsets, const at::Tensor& input_scale,
                               const at::Tensor& weight_scale, const OptionalTensor& bias,
                               const OptionalTensor& input_zero_point,
                               const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({.op = "baraquant::int8_grouped_linear",
                  .input = input,
                  .weight = weight,
                  .weight_scale = &weight_scale,
                  .bias = bias,
                  .weight_sum = &weight_sum,
                  .offsets = &offsets},
                 token_qparams(input_scale, input_zero_point), dtype);
}

at::Tensor smoothquant_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& weight_scale, const at::Tensor& act_scale,
                              const OptionalTensor& bias, const OptionalTensor& act_zero_point,
                              const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({.op = "baraquant::smoothquant_linear",
                  .input = input,
                  .weight = weight,
                  .weight_scale = &weight_scale,
                  .bias = bias,
                  .weight_sum = &weight_sum},
                 {.scale_name = "act_scale",
                  .zero_point_name = "act_zero_point",
                  .scale_per_token = false,
                  .scale = &act_scale,
                  .zero_point = &act_zero_point},
                 dtype);
}

at::Tensor smoothquant_linear_number(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& weight_scale, double act_scale,
                                     const OptionalTensor& bias,
                                     std::optional<int64_t> act_zero_point,
                                     const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({.op = "baraquant::smoothquant_linear",
                  .input = input,
                  .weight = weight,
                  .weight_scale = &weight_scale,
                  .bias = bias,
                  .weight_sum = &weight_sum},
                 {.scale_name = "act_scale",
                  .zero_point_name = "act_zero_point",
                  .scale_per_token = false,
                  .scale_number = act_scale,
                  .zero_point_number = act_zero_point},
                 dtype);
}

MaskedProduct quantized_linear(bool with_mask, const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& weight_scale, const OptionalTensor& bias,
                               bool symmetric, const OptionalTensor& weight_sum, int64_t quant_min,
                               int64_t quant_max, std::optional<at::ScalarType> dtype) {
  return quantized_product(with_mask,
                           {.op = "baraquant::quantized_linear",
                            .input = input,
                            .weight = weight,
                            .weight_scale = &weight_scale,
                            .bias = bias,
                            .weight_sum = &weight_sum},
                           {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max},
                           dtype);
}

MaskedProduct quantized_grouped_linear(bool with_mask, const at::Tensor& input,
                                       const at::Tensor& weight, const at::Tensor& offsets,
                                       const at::Tensor& weight_scale, const OptionalTensor& bias,
                                       bool symmetric, const OptionalTensor& weight_sum,
                                       int64_t quant_min, int64_t quant_max,
                                       std::optional<at::ScalarType> dtype) {
  return quantized_product(with_mask,
                           {.op = "baraquant::quantized_grouped_linear",
                            .input = input,
                            .weight = weight,
                            .weight_scale = &weight_scale,
                            .bias = bias,
                            .weight_sum = &weight_sum,
                            .offsets = &offsets},
                           {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max},
                           dtype);
}

MaskedProduct static_quantized_linear(bool with_mask, const at::Tensor& input,
                                      const at::Tensor& weight, const at::Tensor& weight_scale,
                                      const at::Tensor& act_scale, const OptionalTensor& bias,
                                      const OptionalTensor& act_zero_point,
                                      const OptionalTensor& smooth_scale,
                                      const OptionalTensor& weight_sum, int64_t quant_min,
                                      int64_t quant_max, std::optional<at::ScalarType> dtype) {
  return static_product(with_mask,
                        {.op = "baraquant::static_quantized_linear",
                         .input = input,
                         .weight = weight,
                         .weight_scale = &weight_scale,
                         .bias = bias,
                         .weight_sum = &weight_sum},
                        act_scale, act_zero_point, smooth_scale, quant_min, quant_max, dtype);
}

// Makes two kernels from a function whose first argument says whether the mask is wanted: that of
// the op, and that of its form that returns the mask too.
template <auto function>
struct KernelsOf;

template <typename... Args, MaskedProduct (*function)(bool, Args...)>
struct KernelsOf<function> {
  static at::Tensor plain(Args... args) { return std::get<0>(function(false, args...)); }
  static MaskedProduct with_mask(Args... args) { return function(true, args...); }
};

// Returns the weight's integers [N, K] and scales [N], or [E, N, K] and [E, N]: the given ones, or
// those of the floating weight.
QuantizedRows quantize_weight(const LinearArgs& args, const Schemes& schemes,
                              const GivenWeight& given) {
  if (given) return {*given.integers, given.scale->contiguous(), {}, {}};
  QuantizedRows w =
      quantize_rows(contiguous_rows(args.weight), schemes.weight, /*with_mask=*/false);
  const auto sizes = args.weight.sizes();
  w.values = w.values.view(sizes);
  w.scale = w.scale.view(sizes.slice(0, sizes.size() - 1));
  return w;
}

// Quantizes weight and input, and multiplies where there is something to do.
std::pair<QuantizedRows, QuantizedRows> quantize_and_multiply(const LinearArgs& args,
                                                              const Schemes& schemes,
                                                              bool with_mask,
                                                              const at::Tensor& output,
                                                              const GivenWeight& given) {
  const QuantizedRows w = quantize_weight(args, schemes, given);
  const QuantizedRows rows = quantize_rows(contiguous_rows(args.input), schemes.input, with_mask);
  if (is_left_to_do(args, output)) multiply_quantized(args, rows, {w.values, w.scale}, output);
  return {rows, w};
}

at::Tensor qat_product(const LinearArgs& args, const Schemes& schemes, const BackwardArgs& backward,
                       const GivenWeight& given = GivenWeight::none()) {
  check_qat_linear(args, schemes, given);
  check_backward(args, backward);
  check_values(args);
  const at::Tensor output = empty_output(args, args.input.scalar_type());
  if (is_left_to_do(args, output)) {
    quantize_and_multiply(args, schemes, /*with_mask=*/false, output, given);
  }
  return output;
}

// The same, with all that backward may need; see KeptByQatLinear.
KeptByQatLinear qat_product_kept(const LinearArgs& args, const Schemes& schemes, bool with_mask,
                                 const GivenWeight& given = GivenWeight::none()) {
  check_qat_linear(args, schemes, given);
  check_values(args);
  const at::Tensor &input = args.input, &weight = args.weight;
  const bool symmetric = schemes.input.symmetric;
  const at::Tensor output = empty_output(args, input.scalar_type());
  const auto options = input.options();
  const auto compute = options.dtype(compute_dtype(input.scalar_type()));
  std::vector<c10::SymInt> per_token = input.sym_sizes().vec();
  per_token.back() = 1;
  const auto none = [&](at::ScalarType dtype) { return at::empty({0}, options.dtype(dtype)); };
  if (input.is_meta()) {
    return {
        output,
        at::empty_symint(input.sym_sizes(), options.dtype(at::kChar)),
        at::empty_symint(per_token, compute),
        symmetric ? none(at::kInt) : at::empty_symint(per_token, options.dtype(at::kInt)),
        with_mask ? empty_mask(input) : none(at::kByte),
        given ? none(at::kChar) : at::empty_symint(weight.sym_sizes(), options.dtype(at::kChar)),
        given ? at::empty({0}, compute)
              : at::empty_symint(weight.sym_sizes().slice(0, weight.dim() - 1), compute)};
  }
  const auto [rows, w] = quantize_and_multiply(args, schemes, with_mask, output, given);
  return {output,
          rows.values.view_symint(input.sym_sizes()),
          rows.scale.view_symint(per_token),
          symmetric ? none(at::kInt) : rows.zero_point.view_symint(per_token),
          with_mask ? rows.mask : none(at::kByte),
          given ? none(at::kChar) : w.values,
          given ? at::empty({0}, compute) : w.scale};
}

at::Tensor qat_linear_device(const at::Tensor& input, const at::Tensor& weight,
                             const OptionalTensor& bias, const Schemes& schemes,
                             const BackwardArgs& backward, const GivenWeight& given) {
  return qat_product(
      {.op = "baraquant::qat_linear", .input = input, .weight = weight, .bias = bias}, schemes,
      backward, given);
}

KeptByQatLinear qat_linear_kept_device(const at::Tensor& input, const at::Tensor& weight,
                                       const OptionalTensor& bias, const Schemes& schemes,
                                       bool with_mask, const GivenWeight& given) {
  return qat_product_kept(
      {.op = "baraquant::qat_linear", .input = input, .weight = weight, .bias = bias}, schemes,
      with_mask, given);
}

at::Tensor qat_grouped_linear_device(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& offsets, const OptionalTensor& bias,
                                     const Schemes& schemes, const BackwardArgs& backward) {
  return qat_product({.op = "baraquant::qat_grouped_linear",
                      .input = input,
                      .weight = weight,
                      .bias = bias,
                      .offsets = &offsets},
                     schemes, backward);
}

KeptByQatLinear qat_grouped_linear_kept_device(const at::Tensor& input, const at::Tensor& weight,
                                               const at::Tensor& offsets,
                                               const OptionalTensor& bias, const Schemes& schemes,
                                               bool with_mask) {
  return qat_product_kept({.op = "baraquant::qat_grouped_linear",
                           .input = input,
                           .weight = weight,
                           .bias = bias,
                           .offsets = &offsets},
                          schemes, with_mask);
}

void register_kernels(torch::Library& m) {
  m.impl("int8_linear", &int8_linear);
  m.impl("int8_product", &int8_product);
  m.impl("rescale_product", &rescale_product);
  m.impl("int8_grouped_linear", &int8_grouped_linear);
  m.impl("smoothquant_linear", &smoothquant_linear);
  m.impl("smoothquant_linear.number", &smoothquant_linear_number);
  m.impl("quantized_linear", &KernelsOf<&quantized_linear>::plain);
  m.impl("_quantized_linear_with_mask", &KernelsOf<&quantized_linear>::with_mask);
  m.impl("quantized_grouped_linear", &KernelsOf<&quantized_grouped_linear>::plain);
  m.impl("_quantized_grouped_linear_with_mask", &KernelsOf<&quantized_grouped_linear>::with_mask);
  m.impl("static_quantized_linear", &KernelsOf<&static_quantized_linear>::plain);
  m.impl("_static_quantized_linear_with_mask", &KernelsOf<&static_quantized_linear>::with_mask);
  m.impl("qat_linear", kernel_of<&qat_linear_device>);
  m.impl("_qat_linear_kept", kernel_of<&qat_linear_kept_device>);
  m.impl("qat_grouped_linear", kernel_of<&qat_grouped_linear_device>);
  m.impl("_qat_grouped_linear_kept", kernel_of<&qat_grouped_linear_kept_device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }

}  // namespace baraquant::int8_mm
