// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family below autograd, one function each for CPU, CUDA and Meta:
// check, allocate, quantize what is floating, launch the product. Meta stops before the launches,
// so shapes and errors are the same everywhere. Outputs are contiguous.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "copies.h"
#include "int8_mm/int8_mm_checks.h"
#include "int8_mm/kernels.h"
#include "int8_mm/ops.h"
#include "outputs.h"
#include "qparams/quantize_rows.h"

namespace baraquant::int8_mm {
namespace {

using qparams::quantize_rows;
using qparams::QuantizedRows;
using qparams::RowScheme;

// [..., N]
at::Tensor empty_output(const at::Tensor& input, const at::Tensor& weight, at::ScalarType dtype) {
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  return at::empty_symint(sizes, input.options().dtype(dtype));
}

// [tokens, K] of an input [..., K], also where K is 0.
at::Tensor as_rows(const at::Tensor& input) {
  int64_t tokens = 1;
  for (const int64_t size : input.sizes().slice(0, input.dim() - 1)) tokens *= size;
  return contiguous(input).view({tokens, input.size(-1)});
}

// One for all, or one for each token, from any of the shapes that are allowed.
at::Tensor of_rows(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

// What is left to fill in of the call: the scales of the input, and its zero points.
ProductCall prepare(const at::Tensor& rows, const at::Tensor& weight,
                    const at::Tensor& weight_scale, const OptionalTensor& bias,
                    const at::Tensor& output) {
  ProductCall call;
  call.input = rows;
  call.weight = weight;
  call.weight_scale = contiguous(weight_scale);
  if (bias) call.bias = contiguous(cast(*bias, compute_dtype(output.scalar_type())));
  call.output = output.view({rows.size(0), weight.size(0)});
  return call;
}

void launch(ProductCall& call, const OptionalTensor& weight_sum) {
  if (call.has_zero_point) {
    if (weight_sum) {
      call.weight_sum = contiguous(*weight_sum);
    } else {
      call.weight_sum = at::empty({call.weight.size(0)}, call.weight.options().dtype(at::kInt));
      kernels(call.weight).weight_sums(call.weight, call.weight_sum);
    }
  }
  kernels(call.weight).product(call);
}

void multiply_quantized(const QuantizedRows& rows, const at::Tensor& weight,
                        const at::Tensor& weight_scale, const OptionalTensor& bias,
                        const OptionalTensor& weight_sum, const at::Tensor& output) {
  ProductCall call = prepare(rows.values, weight, weight_scale, bias, output);
  call.input_scale = rows.scale;
  call.zero_point = rows.zero_point;
  call.has_zero_point = rows.zero_point.defined();
  launch(call, weight_sum);
}

at::Tensor product(const Operands& args, const InputQparams& q, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_product(args, q, dtype);
  const at::Tensor output = empty_output(args.input, args.weight, dtype);
  if (!has_work(output)) return output;
  ProductCall call =
      prepare(as_rows(args.input), args.weight, *args.weight_scale, args.bias, output);
  if (q.scale) call.input_scale = of_rows(*q.scale);
  call.input_scale_number = q.scale_number;
  if (q.zero_point && *q.zero_point) call.zero_point = of_rows(cast_to_int32(**q.zero_point));
  call.zero_point_number = static_cast<int32_t>(q.zero_point_number.value_or(0));
  call.has_zero_point = call.zero_point.defined() || call.zero_point_number != 0;
  launch(call, *args.weight_sum);
  return output;
}

at::Tensor int8_linear(const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& input_scale, const at::Tensor& weight_scale,
                       const OptionalTensor& bias, const OptionalTensor& input_zero_point,
                       const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({"baraquant::int8_linear", input, weight, &weight_scale, bias, &weight_sum},
                 {"input_scale", "input_zero_point", true, &input_scale, &input_zero_point}, dtype);
}

at::Tensor smoothquant_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& weight_scale, const at::Tensor& act_scale,
                              const OptionalTensor& bias, const OptionalTensor& act_zero_point,
                              const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product({"baraquant::smoothquant_linear", input, weight, &weight_scale, bias, &weight_sum},
                 {"act_scale", "act_zero_point", false, &act_scale, &act_zero_point}, dtype);
}

at::Tensor smoothquant_linear_number(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& weight_scale, double act_scale,
                                     const OptionalTensor& bias,
                                     std::optional<int64_t> act_zero_point,
                                     const OptionalTensor& weight_sum, at::ScalarType dtype) {
  return product(
      {"baraquant::smoothquant_linear", input, weight, &weight_scale, bias, &weight_sum},
      {"act_scale", "act_zero_point", false, nullptr, nullptr, act_scale, act_zero_point}, dtype);
}

// with_mask: whether the mask is asked for.
MaskedProduct quantized_linear(bool with_mask, const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& weight_scale, const OptionalTensor& bias,
                               bool symmetric, const OptionalTensor& weight_sum, int64_t quant_min,
                               int64_t quant_max, std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const RowScheme scheme{symmetric, quant_min, quant_max};
  const at::ScalarType to = dtype.value_or(input.scalar_type());
  check_quantized_linear(
      {"baraquant::quantized_linear", input, weight, &weight_scale, bias, &weight_sum}, scheme, to);
  const at::Tensor output = empty_output(input, weight, to);
  if (input.is_meta()) return {output, with_mask ? empty_mask(input) : at::Tensor()};
  if (!with_mask && !has_work(output)) return {output, {}};
  const QuantizedRows rows = quantize_rows(as_rows(input), scheme, with_mask);
  if (has_work(output)) {
    multiply_quantized(rows, weight, weight_scale, bias, weight_sum, output);
  }
  return {output, rows.mask};
}

// [tokens, K] of int8, with one scale for all or one for each k. The ops of the affine family do
// it, whose arguments have been checked.
MaskedProduct quantize_static(const at::Tensor& rows, const at::Tensor& act_scale,
                              const OptionalTensor& act_zero_point,
                              const OptionalTensor& smooth_scale, int64_t quant_min,
                              int64_t quant_max, bool with_mask) {
  const OptionalTensor scale(smooth_scale ? *smooth_scale : act_scale);
  OptionalTensor zero_point = act_zero_point;
  if (zero_point && smooth_scale) zero_point = zero_point->expand({rows.size(1)});
  affine::QuantArgs q{scale, zero_point};
  q.granularity = smooth_scale ? Granularity::kPerChannel : Granularity::kPerTensor;
  q.axis = 1;
  q.quant_min = quant_min;
  q.quant_max = quant_max;
  if (with_mask) return affine::quantize_with_mask(rows, q, at::kChar, /*order=*/{});
  return {affine::quantize(rows, q, at::kChar, /*save_mask=*/std::nullopt), {}};
}

MaskedProduct static_quantized_linear(bool with_mask, const at::Tensor& input,
                                      const at::Tensor& weight, const at::Tensor& weight_scale,
                                      const at::Tensor& act_scale, const OptionalTensor& bias,
                                      const OptionalTensor& act_zero_point,
                                      const OptionalTensor& smooth_scale,
                                      const OptionalTensor& weight_sum, int64_t quant_min,
                                      int64_t quant_max, std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::ScalarType to = dtype.value_or(input.scalar_type());
  InputQparams qparams{"act_scale", "act_zero_point", false, &act_scale, &act_zero_point};
  qparams.zero_point_per_token = false;
  check_static_quantized_linear(
      {"baraquant::static_quantized_linear", input, weight, &weight_scale, bias, &weight_sum},
      qparams, smooth_scale, quant_min, quant_max, to);
  const at::Tensor output = empty_output(input, weight, to);
  if (input.is_meta()) return {output, with_mask ? empty_mask(input) : at::Tensor()};
  if (!with_mask && !has_work(output)) return {output, {}};
  const auto [rows, mask] = quantize_static(as_rows(input), act_scale, act_zero_point, smooth_scale,
                                            quant_min, quant_max, with_mask);
  if (has_work(output)) {
    ProductCall call = prepare(rows, weight, weight_scale, bias, output);
    call.input_scale = of_rows(act_scale);
    if (act_zero_point) call.zero_point = of_rows(cast_to_int32(*act_zero_point));
    call.has_zero_point = act_zero_point.has_value();
    launch(call, weight_sum);
  }
  return {output, mask};
}

// Of a function whose first argument says whether the mask is asked for: the kernel of an op, and
// that of its form that returns the mask too.
template <auto function>
struct KernelsOf;

template <typename... Args, MaskedProduct (*function)(bool, Args...)>
struct KernelsOf<function> {
  static at::Tensor plain(Args... args) { return std::get<0>(function(false, args...)); }
  static MaskedProduct with_mask(Args... args) { return function(true, args...); }
};

void check_qat(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
               const Schemes& schemes) {
  check_qat_linear({"baraquant::qat_linear", input, weight, nullptr, bias, nullptr}, schemes);
}

at::Tensor qat_linear_device(const at::Tensor& input, const at::Tensor& weight,
                             const OptionalTensor& bias, const Schemes& schemes) {
  check_qat(input, weight, bias, schemes);
  const at::Tensor output = empty_output(input, weight, input.scalar_type());
  if (has_work(output)) {
    const QuantizedRows w = quantize_rows(contiguous(weight), schemes.weight, false);
    const QuantizedRows rows = quantize_rows(as_rows(input), schemes.input, /*with_mask=*/false);
    multiply_quantized(rows, w.values, w.scale, bias, std::nullopt, output);
  }
  return output;
}

// The same, with all that the backward can ask for. What there is none of is an empty tensor.
KeptByQatLinear qat_linear_kept_device(const at::Tensor& input, const at::Tensor& weight,
                                       const OptionalTensor& bias, const Schemes& schemes,
                                       bool with_mask) {
  check_qat(input, weight, bias, schemes);
  const bool symmetric = schemes.input.symmetric;
  const at::Tensor output = empty_output(input, weight, input.scalar_type());
  const auto options = input.options();
  const auto compute = options.dtype(compute_dtype(input.scalar_type()));
  std::vector<c10::SymInt> per_token = input.sym_sizes().vec();
  per_token.back() = 1;
  if (input.is_meta()) {
    const auto none = [&](at::ScalarType dtype) { return at::empty({0}, options.dtype(dtype)); };
    return {output,
            at::empty_symint(input.sym_sizes(), options.dtype(at::kChar)),
            at::empty_symint(per_token, compute),
            symmetric ? none(at::kInt) : at::empty_symint(per_token, options.dtype(at::kInt)),
            with_mask ? empty_mask(input) : none(at::kByte),
            at::empty_symint(weight.sym_sizes(), options.dtype(at::kChar)),
            at::empty_symint({weight.sym_size(0)}, compute)};
  }
  const QuantizedRows w = quantize_rows(contiguous(weight), schemes.weight, false);
  const QuantizedRows rows = quantize_rows(as_rows(input), schemes.input, with_mask);
  if (has_work(output)) multiply_quantized(rows, w.values, w.scale, bias, std::nullopt, output);
  return {
      output,
      rows.values.view_symint(input.sym_sizes()),
      rows.scale.view_symint(per_token),
      symmetric ? at::empty({0}, options.dtype(at::kInt)) : rows.zero_point.view_symint(per_token),
      with_mask ? rows.mask : at::empty({0}, options.dtype(at::kByte)),
      w.values,
      w.scale};
}

void register_kernels(torch::Library& m) {
  m.impl("int8_linear", &int8_linear);
  m.impl("smoothquant_linear", &smoothquant_linear);
  m.impl("smoothquant_linear.number", &smoothquant_linear_number);
  m.impl("quantized_linear", &KernelsOf<&quantized_linear>::plain);
  m.impl("_quantized_linear_with_mask", &KernelsOf<&quantized_linear>::with_mask);
  m.impl("static_quantized_linear", &KernelsOf<&static_quantized_linear>::plain);
  m.impl("_static_quantized_linear_with_mask", &KernelsOf<&static_quantized_linear>::with_mask);
  m.impl("qat_linear", &Flat<&qat_linear_device>::kernel);
  m.impl("_qat_linear_kept", &Flat<&qat_linear_kept_device>::kernel);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }

// Tensors of these kinds are refused, by the same checks.
TORCH_LIBRARY_IMPL(baraquant, QuantizedCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, QuantizedCUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, QuantizedMeta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, NestedTensorCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, NestedTensorCUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, NestedTensorMeta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseCUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseMeta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseCsrCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseCsrCUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, SparseCsrMeta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, MkldnnCPU, m) { register_kernels(m); }

}  // namespace baraquant::int8_mm
