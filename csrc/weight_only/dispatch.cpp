// SPDX-License-Identifier: BSD-3-Clause
// weight_only_linear below autograd, for CPU, CUDA and Meta.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "affine/core_ops.h"
#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int4/core_ops.h"
#include "weight_only/checks.h"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

constexpr int64_t kChunkBytes = 4 << 20;  // of dequantized weight, so that a cache holds it

// The integers of a packed weight as int8: the four-bit weight whose factors are 1.
at::Tensor unpacked(const at::Tensor& values, const c10::SymInt& columns) {
  constexpr int64_t kWhole = INT32_MAX - 1;  // a group of any row
  const c10::SymInt groups = (columns + (kWhole - 1)) / kWhole;
  const std::vector<c10::SymInt> sizes{values.sym_size(0), groups};
  const at::Tensor ones = is_planning() ? at::empty_symint(sizes, values.options())
                                        : at::ones_symint(sizes, values.options());
  return int4::expand_int4({values, ones, kWhole, columns, /*group_zero_point=*/{}});
}

// PyTorch's product is no kernel of this library; it stands in a plan by its name.
bool only_planned_product(const at::Tensor& like) {
  return only_planned([&] {
    return KernelPlan{.name = "linear",
                      .backend = like.is_cuda() ? "cuda" : "cpu",
                      .architecture = "torch",
                      .bit_stable = false};
  });
}

// target = rows @ columns + bias, by PyTorch. NB: on a GPU its addmm may round a product of 16 bits
// before it adds the bias; the sums in float32 are rounded once.
void multiply_floats(const at::Tensor& rows, const at::Tensor& columns, const OptionalTensor& bias,
                     at::Tensor target) {
  if (bias && rows.is_cuda() && rows.element_size() == 2) {
    target.copy_(at::mm(rows, columns, at::kFloat).add_(*bias));
  } else if (bias) {
    at::addmm_out(target, *bias, rows, columns);
  } else {
    at::mm_out(target, rows, columns);
  }
}

// Dequantizes as many rows of the weight at a time as a CPU's cache holds, and multiplies with them.
void multiply_in_chunks(const at::Tensor& rows, const IntegerWeight& weight,
                        const OptionalTensor& bias, const at::Tensor& target) {
  const int64_t outputs = weight.values.size(0), columns = weight.columns;
  const int64_t row_bytes = columns * static_cast<int64_t>(rows.element_size());
  // A GPU's products are fast only where they are large.
  const int64_t most = rows.is_cuda() ? outputs : std::max(kChunkBytes / row_bytes, int64_t{64});
  const int64_t chunk = std::min(most, outputs);
  const at::Tensor scratch = at::empty({chunk, columns}, rows.options());
  for (int64_t begin = 0; begin < outputs; begin += chunk) {
    const int64_t count = std::min(chunk, outputs - begin);
    const at::Tensor part = scratch.narrow(0, 0, count);
    kernels(rows).dequantize(weight.rows(begin, count), part);
    if (only_planned_product(rows)) return;  // the other chunks call the same kernels
    multiply_floats(rows, part.t(), bias ? OptionalTensor(bias->narrow(0, begin, count)) : bias,
                    target.narrow(1, begin, count));
  }
}

// target = rows @ weight + bias. Adds the call to `few_rows` where their kernels take it.
void multiply(const at::Tensor& rows, const Weight& weight, const OptionalTensor& given_bias,
              const at::Tensor& target, std::vector<FewRows>& few_rows) {
  // NB: PyTorch's product takes another kernel, and adds in another order, where a bias has strides.
  const OptionalTensor bias = given_bias ? OptionalTensor(contiguous(*given_bias)) : std::nullopt;
  const int64_t columns = rows.size(1);
  const int64_t group_size =
      weight.group_size ? std::min(weight.group_size->expect_int(), columns) : columns;
  IntegerWeight given{.values = weight.values,
                      .scale = {},
                      .zero_point = {},
                      .columns = columns,
                      .group_size = group_size};
  const bool is_taken = columns > 0 && kernels(rows).takes(rows, given);
  if (!is_taken && (columns == 0 || !kernels(rows).dequantizes(given, rows.scalar_type()))) {
    const at::Tensor wide = weight.dequantized(columns, rows.scalar_type()).t();
    if (!only_planned_product(rows)) multiply_floats(rows, wide, bias, target);
    return;
  }
  given.scale = contiguous(weight.scale);
  if (weight.zero_point) given.zero_point = contiguous(cast_to_int32(*weight.zero_point));
  if (!is_taken) return multiply_in_chunks(rows, given, bias, target);
  few_rows.push_back(
      {.input = rows, .weight = given, .bias = bias.value_or(at::Tensor()), .output = target});
}

// The output of a call, all of which is computed but what is added to `few_rows`.
at::Tensor output_of(const LinearArgs& args, std::vector<FewRows>& few_rows) {
  check_linear(args);
  const at::Tensor& input = args.input;
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes.back() = args.weight.sym_size(0);
  const at::Tensor output = empty_dense(sizes, input.options());
  if (has_work(output)) {
    const int64_t columns = input.size(-1), outputs = args.weight.size(0);
    const int64_t rows = output.numel() / outputs;
    multiply(contiguous(input).view({rows, columns}), args.integers(), args.bias,
             output.view({rows, outputs}), few_rows);
  }
  return output;
}

void multiply_together(const std::vector<FewRows>& calls) {
  if (!calls.empty()) kernels(calls[0].input).few_rows(calls);
}

at::Tensor linear_device(const LinearArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<FewRows> few_rows;
  const at::Tensor output = output_of(args, few_rows);
  multiply_together(few_rows);
  return output;
}

std::vector<at::Tensor> linears_device(const Linears& calls) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_lists(calls);
  std::vector<FewRows> few_rows;
  std::vector<at::Tensor> outputs;
  for_each(calls, [&](const LinearArgs& args) { outputs.push_back(output_of(args, few_rows)); });
  multiply_together(few_rows);
  return outputs;
}

void register_kernels(torch::Library& m) {
  m.impl("weight_only_linear", kernel_of<&linear_device>);
  m.impl("_weight_only_linears", kernel_of<&linears_device>);
}

}  // namespace

at::Tensor Weight::dequantized(const c10::SymInt& columns, at::ScalarType dtype) const {
  const OptionalTensor given_scale(scale);
  return affine::dequantize(is_packed() ? unpacked(values, columns) : values,
                            {.scale = given_scale, .zero_point = zero_point, .scope = scope()},
                            dtype);
}

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::weight_only
