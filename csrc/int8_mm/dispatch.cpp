// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates, quantizes what is floating and launches the product. Meta stops before the
// launches, so shapes and errors are the same on every device. Outputs are contiguous. All work on
// the view of a call, LinearArgs: a grouped op is the plain one with offsets, an op with a weight of
// four bits the one of int8 with groups.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "affine/core_ops.h"
#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int4/expand.h"
#include "int8_mm/checks.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/grouped_products.h"
#include "int8_mm/integer_backward.h"
#include "int8_mm/launch.h"

namespace baraquant::int8_mm {
namespace {

using range::quantize_rows;
using range::QuantizedRows;

// ---- From checked arguments to a launch ---------------------------------------------------------

// Whether a grouped op has no groups, so that there is nothing to multiply.
bool lacks_groups(const LinearArgs& args) {
  return args.is_grouped() && !args.input.is_meta() && args.offsets->numel() == 0;
}

// Whether the packed weight is read from the arguments themselves, not from copies of them.
bool reads_as_given(const int4::PackedWeight& packed, const at::Tensor& values,
                    const int4::Groups& groups) {
  return packed.values.is_same(values) && packed.factor.is_same(groups.factor) &&
         (!groups.zero_point || packed.zero_point.is_same(*groups.zero_point));
}

at::Tensor sums_of_rows(const ProductCall& call, const Kernels& of_device) {
  const bool is_packed = call.packed.values.defined();
  const at::Tensor weight = is_packed ? int4::expanded(call.packed) : call.weight;
  const at::Tensor sums =
      at::empty(weight.sizes().slice(0, weight.dim() - 1), weight.options().dtype(at::kInt));
  of_device.weight_sums(weight, sums);
  return sums;
}

// The output [..., N]; zeros if there is nothing to multiply.
at::Tensor empty_output(const LinearArgs& args) {
  std::vector<c10::SymInt> sizes = args.input.sym_sizes().vec();
  sizes.back() = args.weight.sym_size(-2);
  const auto options = args.input.options().dtype(args.dtype);
  if (lacks_groups(args)) return filled(sizes, 0, options);
  return empty_dense(sizes, options);
}

// An input [..., K] as a contiguous [tokens, K], also if K is 0.
at::Tensor contiguous_rows(const at::Tensor& input) {
  int64_t tokens = 1;
  for (const int64_t size : input.sizes().slice(0, input.dim() - 1)) tokens *= size;
  return contiguous(input).view({tokens, input.size(-1)});
}

// A scale or zero point in any allowed shape as one dimension: one for all, or one for each token.
at::Tensor of_rows(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

// Whether anything is left to multiply into an output of empty_output().
bool is_left_to_do(const LinearArgs& args, const at::Tensor& output) {
  return has_work(output) && !lacks_groups(args);
}

// The weight as the kernels multiply it.
struct IntegerWeight {
  const at::Tensor& values;
  const at::Tensor& scale;  // undefined if the sums are wanted
};

// Everything in a call but the scales and zero points of the input.
ProductCall prepare(const LinearArgs& args, const at::Tensor& rows, const IntegerWeight& weight,
                    const at::Tensor& output) {
  ProductCall call;
  call.input = rows;
  if (args.int4) {
    call.packed = int4::packed_weight(weight.values, *args.int4, rows.size(1));
  } else {
    call.weight = weight.values;
  }
  if (weight.scale.defined()) call.weight_scale = contiguous(weight.scale);
  if (args.bias) call.bias = contiguous(cast(*args.bias, compute_dtype(output.scalar_type())));
  if (args.is_grouped()) call.offsets = contiguous(*args.offsets);
  call.output = output.view({rows.size(0), weight.values.size(-2)});
  return call;
}

// Makes what the kernels need and do not find themselves. A zero point needs the sums of the weight:
// they are computed if absent.
void complete(ProductCall& call, const at::Tensor* weight_sum) {
  const Kernels& of_device = kernels(call.input);
  if (call.packed.values.defined() && !of_device.takes_packed(call)) {
    call.weight = int4::expanded(call.packed);
    call.packed = {};
  }
  if (call.has_zero_point && weight_sum) {
    call.weight_sum = contiguous(*weight_sum);
  } else if (call.has_zero_point && !of_device.finds_sums(call)) {
    call.weight_sum = sums_of_rows(call, of_device);
  }
}

// The product of rows of integers that have the given scale and zero point.
ProductCall given_product(const LinearArgs& args, const at::Tensor& rows,
                          const at::Tensor& output) {
  const at::Tensor no_scale;
  ProductCall call =
      prepare(args, rows, {args.weight, args.weight_scale ? *args.weight_scale : no_scale}, output);
  const InputQparams& q = args.qparams;
  if (q.scale) call.input_scale = of_rows(*q.scale);
  call.input_scale_number = q.scale_number;
  if (q.zero_point) call.zero_point = of_rows(cast_to_int32(*q.zero_point));
  call.zero_point_number = static_cast<int32_t>(q.zero_point_number.value_or(0));
  call.has_zero_point = call.zero_point.defined() || call.zero_point_number != 0;
  complete(call, args.weight_sum);
  return call;
}

void multiply_given(const LinearArgs& args, const at::Tensor& rows, const at::Tensor& output) {
  kernels(rows).product(given_product(args, rows, output));
}

// Multiplies rows that have the scales and zero points of their own data.
void multiply_quantized(const LinearArgs& args, const range::QuantizedRows& rows,
                        const IntegerWeight& weight, const at::Tensor& output) {
  ProductCall call = prepare(args, rows.values, weight, output);
  call.input_scale = rows.scale;
  call.zero_point = rows.zero_point;
  call.has_zero_point = rows.zero_point.defined();
  call.input_is_newest = args.int4 && reads_as_given(call.packed, weight.values, *args.int4);
  complete(call, args.weight_sum);
  kernels(call.input).product(call);
}

// ---- Ops whose weight is integers ---------------------------------------------------------------

// Checks values where that makes no device wait. A planned call has no values.
void check_values(const LinearArgs& args) {
  if (!is_planning()) check_offset_values(args);
}

void check(const LinearArgs& args) {
  check_arguments(args);
  check_values(args);
}

// The product of an input that is integers; without scales their sums.
at::Tensor product_of(const LinearArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check(args);
  const at::Tensor output = empty_output(args);
  if (!is_left_to_do(args, output)) return output;
  multiply_given(args, contiguous_rows(args.input), output);
  return output;
}

// The products of an input with some weights.
template <typename Calls>
std::vector<at::Tensor> products_of(const Calls& calls) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_lists(calls);
  std::vector<at::Tensor> outputs;
  std::vector<ProductCall> products;
  at::Tensor rows;
  for_each(calls, [&](const auto& call) {
    const LinearArgs args = linear(call);
    check(args);
    const at::Tensor& output = outputs.emplace_back(empty_output(args));
    if (!is_left_to_do(args, output)) return;
    if (!rows.defined()) rows = contiguous_rows(args.input);
    products.push_back(given_product(args, rows, output));
  });
  if (!products.empty()) kernels(rows).product(products);
  return outputs;
}

// The last step of a product alone.
at::Tensor rescaled(const LinearArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check(args);
  const at::Tensor& sums = args.input;
  const at::Tensor output = at::empty_symint(sums.sym_sizes(), sums.options().dtype(args.dtype));
  if (!has_work(output)) return output;
  const at::Tensor rows = contiguous_rows(sums);
  RescaleCall call{.sums = rows,
                   .input_scale = of_rows(*args.qparams.scale),
                   .weight_scale = contiguous(*args.weight_scale),
                   .bias = {},
                   .output = output.view(rows.sizes())};
  if (args.bias) call.bias = contiguous(cast(*args.bias, compute_dtype(args.dtype)));
  kernels(sums).rescale(call);
  return output;
}

// Quantizes rows [tokens, K] to int8, with one scale for all or one for each k, by the ops of the
// affine family.
MaskedProduct quantize_static(const LinearArgs& args, const at::Tensor& rows, bool with_mask) {
  const at::Tensor* smooth_scale = args.smooth_scale;
  const OptionalTensor scale(smooth_scale ? *smooth_scale : *args.qparams.scale);
  OptionalTensor zero_point;
  if (args.qparams.zero_point) zero_point = *args.qparams.zero_point;
  if (zero_point && smooth_scale) zero_point = zero_point->expand({rows.size(1)});
  const affine::QuantArgs q{
      .scale = scale,
      .zero_point = zero_point,
      .scope = smooth_scale ? PerChannel::from_flat(1) : PerTensor::from_flat(),
      .quant_min = args.scheme.quant_min,
      .quant_max = args.scheme.quant_max};
  if (with_mask) return affine::quantize_with_mask(rows, q, at::kChar, /*order=*/{});
  return {affine::quantize(rows, q, at::kChar, /*save_mask=*/std::nullopt), {}};
}

// The product of a floating input that is quantized with a given scale, or with a scale for each row;
// with the mask if it is wanted.
MaskedProduct quantized_product(const LinearArgs& args, bool with_mask) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check(args);
  const at::Tensor& input = args.input;
  const at::Tensor output = empty_output(args);
  if (input.is_meta()) return {output, with_mask ? empty_mask(input) : at::Tensor()};
  const bool multiplies = is_left_to_do(args, output);
  if (!with_mask && !multiplies) return {output, {}};
  const at::Tensor given = contiguous_rows(input);
  if (args.kind == Kind::kStatic) {
    const auto [rows, mask] = quantize_static(args, given, with_mask);
    if (multiplies) multiply_given(args, rows, output);
    return {output, mask};
  }
  const QuantizedRows rows = quantize_rows(given, args.scheme, with_mask);
  if (multiplies) multiply_quantized(args, rows, {args.weight, *args.weight_scale}, output);
  return {output, rows.mask};
}

// The kernels of an op with these arguments: the op's own, and that of the form that returns the
// mask too.
template <typename Call>
at::Tensor kernel(const Call& call) {
  if constexpr (Call::kKind == Kind::kProduct || Call::kKind == Kind::kSums) {
    return product_of(linear(call));
  } else if constexpr (Call::kKind == Kind::kRescaling) {
    return rescaled(linear(call));
  } else {
    return std::get<0>(quantized_product(linear(call), /*with_mask=*/false));
  }
}

template <typename Call>
MaskedProduct masked_kernel(const Call& call) {
  return quantized_product(linear(call), /*with_mask=*/true);
}

// ---- qat_linear and qat_grouped_linear ----------------------------------------------------------

// Returns the weight's integers [N, K] and scales [N], or [E, N, K] and [E, N]: the given ones, or
// those of the floating weight.
QuantizedRows quantize_weight(const LinearArgs& args) {
  if (args.given) return {*args.given.integers, args.given.scale->contiguous(), {}, {}};
  QuantizedRows w =
      quantize_rows(contiguous_rows(args.weight), args.weight_scheme, /*with_mask=*/false);
  const auto sizes = args.weight.sizes();
  w.values = w.values.view(sizes);
  w.scale = w.scale.view(sizes.slice(0, sizes.size() - 1));
  return w;
}

// Quantizes weight and input, and multiplies where there is something to do.
std::pair<QuantizedRows, QuantizedRows> quantize_and_multiply(const LinearArgs& args,
                                                              bool with_mask,
                                                              const at::Tensor& output) {
  const QuantizedRows w = quantize_weight(args);
  const QuantizedRows rows = quantize_rows(contiguous_rows(args.input), args.scheme, with_mask);
  if (is_left_to_do(args, output)) multiply_quantized(args, rows, {w.values, w.scale}, output);
  return {rows, w};
}

at::Tensor trained_product(const LinearArgs& args, const BackwardArgs& backward) {
  check_arguments(args);
  check_backward(args, backward);
  check_values(args);
  const at::Tensor output = empty_output(args);
  if (is_left_to_do(args, output)) quantize_and_multiply(args, /*with_mask=*/false, output);
  return output;
}

// The same, with all that backward may need; see KeptByQatLinear.
KeptByQatLinear trained_product_kept(const LinearArgs& args, bool with_mask) {
  check(args);
  const at::Tensor &input = args.input, &weight = args.weight;
  const bool symmetric = args.scheme.symmetric, given = bool(args.given);
  const at::Tensor output = empty_output(args);
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
  const auto [rows, w] = quantize_and_multiply(args, with_mask, output);
  return {output,
          rows.values.view_symint(input.sym_sizes()),
          rows.scale.view_symint(per_token),
          symmetric ? none(at::kInt) : rows.zero_point.view_symint(per_token),
          with_mask ? rows.mask : none(at::kByte),
          given ? none(at::kChar) : w.values,
          given ? at::empty({0}, compute) : w.scale};
}

template <typename Weight, typename... Given>
at::Tensor qat_device(const QatLinearOf<Weight>& call, const BackwardArgs& backward,
                      const Given&... given) {
  return trained_product(linear(call, given...), backward);
}

template <typename Weight, typename... Given>
KeptByQatLinear qat_kept_device(const QatLinearOf<Weight>& call, bool with_mask,
                                const Given&... given) {
  return trained_product_kept(linear(call, given...), with_mask);
}

void register_kernels(torch::Library& m) {
  m.impl("int8_linear", kernel_of<&kernel<Int8Linear>>);
  m.impl("int8_grouped_linear", kernel_of<&kernel<Int8GroupedLinear>>);
  m.impl("int8_product", kernel_of<&kernel<Int8Product>>);
  m.impl("rescale_product", kernel_of<&kernel<RescaleProduct>>);
  m.impl("smoothquant_linear", kernel_of<&kernel<SmoothquantLinear>>);
  m.impl("smoothquant_linear.number", kernel_of<&kernel<SmoothquantLinearNumber>>);
  m.impl("quantized_linear", kernel_of<&kernel<QuantizedLinear>>);
  m.impl("quantized_grouped_linear", kernel_of<&kernel<QuantizedGroupedLinear>>);
  m.impl("static_quantized_linear", kernel_of<&kernel<StaticQuantizedLinear>>);
  m.impl(QuantizedLinear::kMaskedOp, kernel_of<&masked_kernel<QuantizedLinear>>);
  m.impl(QuantizedGroupedLinear::kMaskedOp, kernel_of<&masked_kernel<QuantizedGroupedLinear>>);
  m.impl(StaticQuantizedLinear::kMaskedOp, kernel_of<&masked_kernel<StaticQuantizedLinear>>);
  m.impl("int4_linear", kernel_of<&kernel<Int4Linear>>);
  m.impl("_int8_linears", kernel_of<&products_of<Int8Linears>>);
  m.impl("_int4_linears", kernel_of<&products_of<Int4Linears>>);
  m.impl("quantized_int4_linear", kernel_of<&kernel<QuantizedInt4Linear>>);
  m.impl("static_quantized_int4_linear", kernel_of<&kernel<StaticQuantizedInt4Linear>>);
  m.impl("qat_linear", kernel_of<&qat_device<const at::Tensor&, GivenWeight>>);
  m.impl("_qat_linear_kept", kernel_of<&qat_kept_device<const at::Tensor&, GivenWeight>>);
  m.impl("qat_grouped_linear", kernel_of<&qat_device<GroupedWeight>>);
  m.impl("_qat_grouped_linear_kept", kernel_of<&qat_kept_device<GroupedWeight>>);
  m.impl("_integer_backward", kernel_of<&integer_backward_device>);
  m.impl("_grouped_matmul", &grouped_matmul_device);
  m.impl("_grouped_outer", &grouped_outer_device);
  m.impl("_grouped_sum", &grouped_sum_device);
}

}  // namespace

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::int8_mm
