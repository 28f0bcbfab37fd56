// SPDX-License-Identifier: BSD-3-Clause
#include "frame/copies.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/round.h>

#include <limits>

#include "frame/outputs.h"
#include "frame/plan.h"

namespace baraquant {
namespace {

bool only_planned_as(const char* name, const at::Tensor& like) {
  return only_planned([&] {
    return KernelPlan{
        .name = name, .backend = like.is_cuda() ? "cuda" : "cpu", .architecture = "torch"};
  });
}

}  // namespace

at::Tensor contiguous(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  if (only_planned_as("contiguous", tensor)) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  }
  return tensor.contiguous();
}

at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype) return tensor;
  if (only_planned_as("to", tensor)) return at::empty_like(tensor, tensor.options().dtype(dtype));
  return tensor.to(dtype);
}

at::Tensor cast_to_int32(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kLong && dtype != at::kUInt32 && dtype != at::kUInt64) {
    return cast(tensor, at::kInt);
  }
  if (only_planned_as("to", tensor))
    return at::empty_like(tensor, tensor.options().dtype(at::kInt));
  // Through double, in which every int32 is exact.
  return at::clamp(tensor.to(at::kDouble), std::numeric_limits<int32_t>::min(),
                   std::numeric_limits<int32_t>::max())
      .to(at::kInt);
}

at::Tensor cast_zero_point(const at::Tensor& tensor, at::ScalarType of) {
  const at::Tensor numbers = cast_to_int32(tensor);
  if (tensor.scalar_type() == of || only_planned_as("clamp", numbers)) return numbers;
  const int64_t least = of == at::kByte ? 0 : -128;
  return at::clamp(numbers, least, least + 255);
}

at::Tensor cast_rounded(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.scalar_type() == dtype) return tensor;
  if (only_planned_as("round", tensor))
    return at::empty_like(tensor, tensor.options().dtype(dtype));
  return at::round(tensor).to(dtype);
}

void copy_into(const at::Tensor& target, const at::Tensor& source) {
  if (!only_planned_as("copy", target)) target.copy_(source);
}

at::Tensor filled(c10::SymIntArrayRef sizes, const at::Scalar& value,
                  const at::TensorOptions& options) {
  const at::Tensor result = at::empty_symint(sizes, options);
  if (has_work(result) && !only_planned_as("fill", result)) result.fill_(value);
  return result;
}

}  // namespace baraquant
