// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the affine family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates and launches. Meta stops before the launch, so shapes, strides and errors are
// the same on every device. A non-overlapping dense input keeps its strides; any other input is made
// contiguous first.
#include <ATen/ops/empty.h>

#include "affine/checks.h"
#include "affine/core_ops.h"
#include "affine/launch.h"
#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "granularity/memory_order.h"

namespace baraquant::affine {
namespace {

// Kernels write the 8-bit integer types, the input's type and its compute type. Any other floating
// type is cast from the compute type: that holds the integers exactly, so they are rounded once.
bool kernel_writes(at::ScalarType input, at::ScalarType output) {
  return at::isIntegralType(output, false) || output == input || output == compute_dtype(input);
}

// Whether the switch is off, as far as the host can see without waiting for a device.
bool is_seen_off(const OptionalTensor& enabled, const at::Tensor& input) {
  return enabled && input.is_cpu() && *static_cast<const uint8_t*>(enabled->const_data_ptr()) == 0;
}

// A fake_quantize that is switched off: the output is the input, and every bit of the mask is set.
void pass_through(const at::Tensor& input, const at::Tensor& output, const at::Tensor& mask) {
  copy_into(output, input);
  if (!mask.defined() || is_planning()) return;
  mask.fill_(255);
  const int64_t rest = input.numel() % 8;
  if (rest > 0) mask.select(0, -1).fill_((1 << rest) - 1);
}

// The zero point as kernels take it: int32, or the compute type if it is learned.
at::Tensor kernel_zero_point(const at::Tensor& zero_point, at::ScalarType compute) {
  return zero_point.is_floating_point() ? cast_rounded(zero_point, compute)
                                        : cast_to_int32(zero_point);
}

// The arguments of a launch over a dense input, without its tensors. Not for Meta tensors.
Call prepare_call(const at::Tensor& dense_input, const QuantArgs& q) {
  Call call;
  call.map = scale_map_of(dense_input, q.scope);
  call.scale_number = q.scale_number;
  call.zero_point_number = q.zero_point_number;
  call.quant_min = q.quant_min;
  call.quant_max = q.quant_max;
  const ScaleOrder order(dense_input, q.scope);
  if (q.scale) call.scale = order.to_memory(*q.scale);
  if (q.zero_point) {
    const at::ScalarType compute = q.scale ? q.scale->scalar_type() : at::kFloat;
    call.zero_point = order.to_memory(kernel_zero_point(*q.zero_point, compute));
  }
  return call;
}

// Output and mask of an input in a memory order; without one it is dense, and the mask undefined.
TensorPair run_forward(const OpName& op, void (*Kernels::*kernel)(const Call&),
                       const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                       std::optional<at::IntArrayRef> order, const OptionalTensor& enabled = {}) {
  const at::Tensor x = order ? in_order(op, "input", input, *order) : dense(input);
  const bool direct = kernel_writes(x.scalar_type(), dtype);
  const at::Tensor output = empty_as(x, direct ? dtype : compute_dtype(x.scalar_type()));
  const at::Tensor mask = order ? empty_mask(x) : at::Tensor();
  if (has_work(x) && is_seen_off(enabled, x)) {
    pass_through(x, output, mask);
  } else if (has_work(x)) {
    Call call = prepare_call(x, q);
    call.first = x;
    call.result = output;
    call.mask = mask;
    if (enabled) call.enabled = *enabled;
    (kernels(x).*kernel)(call);
  }
  return {cast(output, dtype), mask};
}

TensorPair run_quantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                        std::optional<at::IntArrayRef> order) {
  const OpName op{"quantize", q.scope.granularity};
  check_quantize(op, input, q, dtype);
  return run_forward(op, &Kernels::quantize, input, q, dtype, order);
}

at::Tensor quantize_device(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                           std::optional<bool> /*save_mask: autograd reads it*/) {
  return std::get<0>(run_quantize(input, q, dtype, std::nullopt));
}

TensorPair quantize_with_mask_device(const at::Tensor& input, const QuantArgs& q,
                                     at::ScalarType dtype, at::IntArrayRef order) {
  return run_quantize(input, q, dtype, order);
}

TensorPair run_fake_quantize(const at::Tensor& input, const QuantArgs& q,
                             std::optional<at::IntArrayRef> order, const OptionalTensor& enabled) {
  const OpName op{"fake_quantize", q.scope.granularity};
  check_fake_quantize(op, input, q);
  if (enabled) check_switch(op, "enabled", *enabled, input);
  return run_forward(op, &Kernels::fake_quantize, input, q, input.scalar_type(), order, enabled);
}

at::Tensor fake_quantize_device(const at::Tensor& input, const QuantArgs& q,
                                std::optional<bool> /*save_mask: autograd reads it*/,
                                const OptionalTensor& enabled) {
  return std::get<0>(run_fake_quantize(input, q, std::nullopt, enabled));
}

TensorPair fake_quantize_with_mask_device(const at::Tensor& input, const QuantArgs& q,
                                          at::IntArrayRef order, const OptionalTensor& enabled) {
  return run_fake_quantize(input, q, order, enabled);
}

at::Tensor dequantize_device(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype) {
  const OpName op{"dequantize", q.scope.granularity};
  check_dequantize(op, input, q, dtype);
  // A number has no dtype: the arithmetic is in double if the input or the output is.
  const bool in_double = q.scale ? q.scale->scalar_type() == at::kDouble
                                 : dtype == at::kDouble || input.scalar_type() == at::kDouble;
  const at::ScalarType compute = in_double ? at::kDouble : at::kFloat;
  const bool is_integer = at::isIntegralType(input.scalar_type(), false);
  const at::Tensor x = is_integer ? dense(input) : cast(dense(input), compute);
  const at::ScalarType written = dtype == at::kDouble ? compute : dtype;
  at::Tensor output = empty_as(x, written);
  if (has_work(x)) {
    Call call = prepare_call(x, q);
    call.first = x;
    call.result = output;
    kernels(x).dequantize(call, compute);
  }
  return cast(output, dtype);
}

// Kernels take dy in x's dtype or in the compute type. Any other dtype is cast to the compute type.
at::Tensor gradient_input(const at::Tensor& grad, at::ScalarType dtype) {
  return grad.scalar_type() == dtype ? grad : cast(grad, compute_dtype(dtype));
}

at::Tensor input_gradient_device(const at::Tensor& input, const QuantArgs& q,
                                 const at::Tensor& grad, bool through_quantize) {
  const OpName op{through_quantize ? "quantize" : "fake_quantize", q.scope.granularity,
                  "_backward"};
  check_gradient(op, input, q, grad, through_quantize);
  const at::Tensor x = dense(input);
  at::Tensor result = empty_as(x, x.scalar_type());
  if (has_work(x)) {
    Call call = prepare_call(x, q);
    call.first = in_order(op, "grad", gradient_input(grad, x.scalar_type()), memory_order(x));
    call.second = x;
    call.result = result;
    kernels(x).input_gradient(call, through_quantize);
  }
  return result;
}

at::Tensor masked_gradient_device(const at::Tensor& grad, const QuantArgs& q,
                                  const at::Tensor& mask, at::IntArrayRef order,
                                  at::ScalarType dtype, bool through_quantize) {
  const OpName op{through_quantize ? "quantize" : "fake_quantize", q.scope.granularity,
                  "_backward (from the mask)"};
  check_masked_gradient(op, grad, q, mask, dtype, through_quantize);
  const at::Tensor dy = in_order(op, "grad", gradient_input(grad, dtype), order);
  at::Tensor result = empty_as(dy, dtype);
  if (has_work(dy)) {
    // The gradient through fake_quantize does not depend on the scale.
    Call call;
    if (through_quantize) {
      call = prepare_call(dy, q);
    } else {
      call.map = make_per_tensor_map(dy.numel());
    }
    call.first = dy;
    call.mask = contiguous(mask);
    call.result = result;
    kernels(dy).masked_gradient(call, through_quantize);
  }
  return result;
}

TensorTriple qparams_gradient_device(const at::Tensor& input, const QuantArgs& q,
                                     const at::Tensor& grad, bool zero_point_gradient) {
  const OpName op{"fake_quantize", q.scope.granularity, "_backward_qparams"};
  check_gradient(op, input, q, grad, false);
  TORCH_CHECK_VALUE(q.scale, op, ": expected scale to be a tensor, but got a number");
  const at::Tensor x = dense(input);
  const at::ScalarType compute = compute_dtype(x.scalar_type());
  const bool is_learned = q.zero_point && q.zero_point->is_floating_point();
  at::Tensor result = empty_as(x, x.scalar_type());
  const auto sums = [&](const at::Tensor& like) {
    const auto options = x.options().dtype(compute);
    return x.sym_numel() == 0 ? filled(like.sym_sizes(), 0, options)
                              : at::empty_symint(like.sym_sizes(), options);
  };
  at::Tensor dscale = sums(*q.scale);
  at::Tensor dzero = zero_point_gradient ? sums(q.zero_point ? *q.zero_point : *q.scale)
                                         : at::empty({0}, x.options().dtype(compute));
  if (has_work(x)) {
    Call call = prepare_call(x, q);
    call.first = in_order(op, "grad", grad, memory_order(x));
    call.second = x;
    call.result = result;
    const ScaleOrder scale_order(x, q.scope);
    const at::Tensor scale_sums = scale_order.buffer_for(dscale);
    const at::Tensor zero_sums = zero_point_gradient ? scale_order.buffer_for(dzero) : at::Tensor();
    kernels(x).qparams_gradient(call, scale_sums, zero_sums);
    scale_order.restore(scale_sums, dscale);
    if (zero_point_gradient) scale_order.restore(zero_sums, dzero);
  }
  return {result, dscale, is_learned ? cast(dzero, q.zero_point->scalar_type()) : dzero};
}

at::Tensor round_master_device(const at::Tensor& input, bool to_bfloat16) {
  check_floating("baraquant::_round_master", "input", input);
  const at::ScalarType from = input.scalar_type();
  const at::Tensor rounded = cast(input, to_bfloat16 ? at::kBFloat16 : at::kHalf);
  // NB: an op returns a tensor of its own, never its input.
  return rounded.scalar_type() == from ? input.clone() : cast(rounded, from);
}

void register_kernels(torch::Library& m) {
  m.impl("_quantize", kernel_of<&quantize_device>);
  m.impl("_fake_quantize", kernel_of<&fake_quantize_device>);
  m.impl("_dequantize", kernel_of<&dequantize_device>);
  m.impl("_quantize_with_mask", kernel_of<&quantize_with_mask_device>);
  m.impl("_fake_quantize_with_mask", kernel_of<&fake_quantize_with_mask_device>);
  m.impl("_input_gradient", kernel_of<&input_gradient_device>);
  m.impl("_masked_gradient", kernel_of<&masked_gradient_device>);
  m.impl("_qparams_gradient", kernel_of<&qparams_gradient_device>);
  m.impl("_round_master", kernel_of<&round_master_device>);
}

}  // namespace

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::affine
