// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the fused family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates and launches. If the device cannot hold a row that is to be quantized, a first
// kernel makes the rows and the range family quantizes them.
#include <ATen/ops/empty.h>

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/devices.h"
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

// launch(call) returns false if the rows are too long to be quantized at once.
template <typename AnyCall, typename Launch>
void run(AnyCall& call, const Outputs& to, const Launch& launch) {
  call.to = to;
  if (launch(call)) return;
  const at::Tensor made = at::empty(call.input.sizes(), call.input.options());
  call.to = {.output = made};
  launch(call);
  range::quantize_rows_into(made, to.scheme, {to.values, to.scale, to.zero_point});
}

// make() runs the stage of an op's arguments, and returns the sum with a residual, undefined without.
at::Tensor make_norm(const at::Tensor& input, const at::Tensor* residual, const Norm& norm,
                     const Outputs& to) {
  const at::Tensor sum = residual ? empty_like(input, input.scalar_type()) : at::Tensor();
  if (!has_work(input)) return sum;
  NormCall call;
  call.input = rows_of(input);
  if (residual) {
    call.residual = rows_of(*residual);
    call.residual_out = sum;
  }
  if (norm.weight) call.weight = contiguous(*norm.weight);
  if (norm.bias) call.bias = contiguous(*norm.bias);
  call.eps = norm.eps;
  call.centered = norm.centered;
  run(call, to, kernels(input).norm);
  return sum;
}
at::Tensor make(const NormArgs& args, const Outputs& to) {
  return make_norm(args.input, nullptr, args.norm, to);
}
at::Tensor make(const ResidualNormArgs& args, const Outputs& to) {
  return make_norm(args.input, &args.residual, args.norm, to);
}

at::Tensor make(const ActivationArgs& args, const Outputs& to) {
  if (!has_work(args.input)) return {};
  ActivationCall call;
  call.input = rows_of(args.input);
  if (args.up) call.up = rows_of(*args.up);
  call.activation = activation_of(args.activation);
  run(call, to, kernels(args.input).activation);
  return {};
}

at::Tensor make(const HadamardArgs& args, const Outputs& to) {
  const auto& [input, block] = args;
  if (!has_work(input)) return {};
  HadamardCall call;
  call.input = rows_of(input);
  call.block = block;
  run(call, to, [&](const HadamardCall& rows) {
    const auto launch = kernels(rows.input).hadamard;
    if (launch(rows)) return true;
    if (rows.to.values.defined()) return false;
    HadamardCall blocks = rows;  // each block as a row of its own
    blocks.input = contiguous(rows.input).view({-1, rows.block});
    return launch(blocks);
  });
  return {};
}

template <typename Args>
constexpr bool kHasResidual = std::is_same_v<Args, ResidualNormArgs>;

template <typename Args>
auto float_device(const Args& args) {
  check(args, nullptr);
  const at::Tensor output = empty_like(args.input, args.input.scalar_type());
  const at::Tensor sum = make(args, {.output = output});
  if constexpr (kHasResidual<Args>) {
    return TensorPair(output, sum);
  } else {
    return output;
  }
}

template <typename Args>
auto quantize_device(const Args& args, const QuantizeArgs& q) {
  check(args, &q);
  const at::Tensor values = empty_like(args.input, q.dtype);
  std::vector<c10::SymInt> sizes(args.input.sym_sizes().vec());
  sizes.back() = 1;
  const auto [scale, zero_point] = range::empty_qparams(args.input, sizes, q.scheme);
  const at::Tensor sum =
      make(args, {.values = values, .scale = scale, .zero_point = zero_point, .scheme = q.scheme});
  if constexpr (kHasResidual<Args>) {
    return TensorQuadruple(values, scale, zero_point, sum);
  } else {
    return TensorTriple(values, scale, zero_point);
  }
}

void register_kernels(torch::Library& m) {
  m.impl("_norm", kernel_of<&float_device<NormArgs>>);
  m.impl("_norm_residual", kernel_of<&float_device<ResidualNormArgs>>);
  m.impl("_norm_quantize", kernel_of<&quantize_device<NormArgs>>);
  m.impl("_norm_residual_quantize", kernel_of<&quantize_device<ResidualNormArgs>>);
  m.impl("_activation", kernel_of<&float_device<ActivationArgs>>);
  m.impl("_activation_quantize", kernel_of<&quantize_device<ActivationArgs>>);
  m.impl("_hadamard", kernel_of<&float_device<HadamardArgs>>);
  m.impl("_hadamard_quantize", kernel_of<&quantize_device<HadamardArgs>>);
}

}  // namespace

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::fused
