// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the fused family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates and launches. If the device cannot hold a row that is to be quantized, a first
// kernel makes the rows and the range family quantizes them.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/no_cuda.h"
#include "frame/outputs.h"
#include "fused/checks.h"
#include "fused/launch.h"
#include "range/quantize_rows.h"

namespace baraquant::fused {
namespace {

at::Tensor empty_like(const at::Tensor& input, at::ScalarType dtype) {
  return empty_dense(input.sym_sizes(), input.options().dtype(dtype));
}

// The tensor as [rows, length] with neighbouring elements of a row side by side: a view if the rows
// lie at equal distances, else a copy.
at::Tensor rows_of(const at::Tensor& tensor) {
  const int64_t length = tensor.size(-1), count = tensor.numel() / length;
  int64_t stride = 0, rows = 1;
  bool is_view = length == 1 || tensor.stride(-1) == 1;
  for (int64_t d = tensor.dim() - 2; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (rows == 1) stride = tensor.stride(d);
    is_view = is_view && tensor.stride(d) == stride * rows;
    rows *= tensor.size(d);
  }
  if (is_view) return tensor.as_strided({count, length}, {rows == 1 ? length : stride, 1});
  return contiguous(tensor).view({count, length});
}

// The results of an op that quantizes.
struct Quantized {
  at::Tensor values, scale, zero_point;

  Quantized(const at::Tensor& input, const QuantizeArgs& q)
      : values(empty_like(input, q.dtype)), rule(q.quant_min, q.quant_max, q.symmetric) {
    std::vector<c10::SymInt> sizes(input.sym_sizes().vec());
    sizes.back() = 1;
    const auto options = input.options().dtype(compute_dtype(input.scalar_type()));
    if (input.is_meta() || input.sym_numel() != 0) {
      scale = at::empty_symint(sizes, options);
      zero_point = at::empty_symint(sizes, options.dtype(at::kInt));
    } else {
      scale = filled(sizes, 1, options);
      zero_point = filled(sizes, rule.zero_point_of_zeros(), options.dtype(at::kInt));
    }
  }
  Outputs outputs() const {
    return {.values = values, .scale = scale, .zero_point = zero_point, .rule = rule};
  }
  TensorTriple triple() const { return {values, scale, zero_point}; }

  range::Rule<double> rule;
};

template <typename AnyCall>
void set_input(AnyCall& call, const at::Tensor& input) {
  call.input = rows_of(input);
  call.count = call.input.size(0);
  call.length = call.input.size(1);
}

// launch(call) returns false if the rows are too long to be quantized at once.
template <typename AnyCall, typename Launch>
void run(AnyCall& call, const Outputs& to, const Launch& launch) {
  call.to = to;
  if (launch(call)) return;
  const at::Tensor made = at::empty({call.count, call.length}, call.input.options());
  call.to = {.output = made};
  launch(call);
  const range::RowScheme scheme{to.rule.symmetric, static_cast<int64_t>(to.rule.range.min),
                                static_cast<int64_t>(to.rule.range.max)};
  range::quantize_rows_into(made, scheme, {to.values, to.scale, to.zero_point});
}

// Returns the sum, undefined without a residual.
at::Tensor run_norm(const at::Tensor& input, const at::Tensor* residual, const NormArgs& args,
                    const Outputs& to) {
  const at::Tensor sum = residual ? empty_like(input, input.scalar_type()) : at::Tensor();
  if (!has_work(input)) return sum;
  NormCall call;
  set_input(call, input);
  if (residual) {
    call.residual = rows_of(*residual);
    call.residual_out = sum;
  }
  if (args.weight) call.weight = contiguous(*args.weight);
  if (args.bias) call.bias = contiguous(*args.bias);
  call.eps = args.eps;
  call.centered = args.centered;
  run(call, to, kernels(input).norm);
  return sum;
}

at::Tensor norm_device(const at::Tensor& input, const NormArgs& args) {
  check_norm(input, nullptr, args, nullptr);
  const at::Tensor output = empty_like(input, input.scalar_type());
  run_norm(input, nullptr, args, {.output = output});
  return output;
}

TensorPair norm_residual_device(const at::Tensor& input, const at::Tensor& residual,
                                const NormArgs& args) {
  check_norm(input, &residual, args, nullptr);
  const at::Tensor output = empty_like(input, input.scalar_type());
  const at::Tensor sum = run_norm(input, &residual, args, {.output = output});
  return {output, sum};
}

TensorTriple norm_quantize_device(const at::Tensor& input, const NormArgs& args,
                                  const QuantizeArgs& q) {
  check_norm(input, nullptr, args, &q);
  const Quantized result(input, q);
  run_norm(input, nullptr, args, result.outputs());
  return result.triple();
}

TensorQuadruple norm_residual_quantize_device(const at::Tensor& input, const at::Tensor& residual,
                                              const NormArgs& args, const QuantizeArgs& q) {
  check_norm(input, &residual, args, &q);
  const Quantized result(input, q);
  const at::Tensor sum = run_norm(input, &residual, args, result.outputs());
  return {result.values, result.scale, result.zero_point, sum};
}

void run_activation(const ActivationArgs& args, const Outputs& to) {
  if (!has_work(args.input)) return;
  ActivationCall call;
  set_input(call, args.input);
  if (args.up) call.up = rows_of(*args.up);
  call.activation = activation_of(args.activation);
  run(call, to, kernels(args.input).activation);
}

at::Tensor activation_device(const ActivationArgs& args) {
  check_activation(args, nullptr);
  const at::Tensor output = empty_like(args.input, args.input.scalar_type());
  run_activation(args, {.output = output});
  return output;
}

TensorTriple activation_quantize_device(const ActivationArgs& args, const QuantizeArgs& q) {
  check_activation(args, &q);
  const Quantized result(args.input, q);
  run_activation(args, result.outputs());
  return result.triple();
}

void run_hadamard(const HadamardArgs& args, const Outputs& to) {
  const at::Tensor& input = args.input;
  const int64_t block = args.block;
  if (!has_work(input)) return;
  HadamardCall call;
  set_input(call, input);
  call.block = block;
  run(call, to, [&](const HadamardCall& rows) {
    if (kernels(input).hadamard(rows)) return true;
    if (rows.to.values.defined()) return false;
    HadamardCall blocks = rows;  // each block as a row of its own
    blocks.input = contiguous(rows.input).view({-1, block});
    blocks.count = blocks.input.size(0);
    blocks.length = block;
    return kernels(input).hadamard(blocks);
  });
}

at::Tensor hadamard_device(const HadamardArgs& args) {
  check_hadamard(args, nullptr);
  const at::Tensor output = empty_like(args.input, args.input.scalar_type());
  run_hadamard(args, {.output = output});
  return output;
}

TensorTriple hadamard_quantize_device(const HadamardArgs& args, const QuantizeArgs& q) {
  check_hadamard(args, &q);
  const Quantized result(args.input, q);
  run_hadamard(args, result.outputs());
  return result.triple();
}

void register_kernels(torch::Library& m) {
  m.impl("_norm", kernel_of<&norm_device>);
  m.impl("_norm_residual", kernel_of<&norm_residual_device>);
  m.impl("_norm_quantize", kernel_of<&norm_quantize_device>);
  m.impl("_norm_residual_quantize", kernel_of<&norm_residual_quantize_device>);
  m.impl("_activation", kernel_of<&activation_device>);
  m.impl("_activation_quantize", kernel_of<&activation_quantize_device>);
  m.impl("_hadamard", kernel_of<&hadamard_device>);
  m.impl("_hadamard_quantize", kernel_of<&hadamard_quantize_device>);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }

#ifndef BARAQUANT_WITH_CUDA
const Kernels& cuda_kernels() { raise_without_cuda(); }
#endif

}  // namespace baraquant::fused
