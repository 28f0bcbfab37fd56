// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/multiply.h"

#include <ATen/ops/empty.h>

#include "frame/copies.h"
#include "frame/outputs.h"
#include "int4/expand.h"

namespace baraquant::int8_mm {
namespace {

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

}  // namespace

at::Tensor empty_output(const LinearArgs& args, at::ScalarType dtype) {
  std::vector<c10::SymInt> sizes = args.input.sym_sizes().vec();
  sizes.back() = args.weight.sym_size(-2);
  const auto options = args.input.options().dtype(dtype);
  if (lacks_groups(args)) return filled(sizes, 0, options);
  return empty_dense(sizes, options);
}

at::Tensor contiguous_rows(const at::Tensor& input) {
  int64_t tokens = 1;
  for (const int64_t size : input.sizes().slice(0, input.dim() - 1)) tokens *= size;
  return contiguous(input).view({tokens, input.size(-1)});
}

at::Tensor of_rows(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

bool is_left_to_do(const LinearArgs& args, const at::Tensor& output) {
  return has_work(output) && !lacks_groups(args);
}

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

void launch(ProductCall& call, const OptionalTensor& weight_sum) {
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
  of_device.product(call);
}

void multiply_quantized(const LinearArgs& args, const range::QuantizedRows& rows,
                        const IntegerWeight& weight, const at::Tensor& output) {
  ProductCall call = prepare(args, rows.values, weight, output);
  call.input_scale = rows.scale;
  call.zero_point = rows.zero_point;
  call.has_zero_point = rows.zero_point.defined();
  call.input_is_newest = args.int4 && reads_as_given(call.packed, weight.values, *args.int4);
  launch(call, args.weight_sum ? *args.weight_sum : std::nullopt);
}

}  // namespace baraquant::int8_mm
