// SPDX-License-Identifier: BSD-3-Clause
// The copies and fills that torch does for an op. Each is a separate kernel, so while a call is
// only planned (plan.h), each is added to the plan instead of being executed. The functions return
// the tensor itself if nothing has to change.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

at::Tensor contiguous(const at::Tensor& tensor);

// Keeps the strides if the tensor is dense.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype);

// Converts an integer tensor; values outside of int32 saturate.
at::Tensor cast_to_int32(const at::Tensor& tensor);

// Converts zero points; those outside of the integers of `of`, int8 or uint8, become the nearest.
at::Tensor cast_zero_point(const at::Tensor& tensor, at::ScalarType of);

// Rounds to integers before converting: a narrower dtype could turn a non-tie into a tie.
at::Tensor cast_rounded(const at::Tensor& tensor, at::ScalarType dtype);

// Copies source into target, which has the same shape.
void copy_into(const at::Tensor& target, const at::Tensor& source);

at::Tensor filled(c10::SymIntArrayRef sizes, const at::Scalar& value,
                  const at::TensorOptions& options);

}  // namespace baraquant
