// SPDX-License-Identifier: BSD-3-Clause
// The copies and fills that torch makes for an op. Each is a kernel of its own, so each is noted,
// and not made, while a call is planned (plan.h). A tensor that is already so is returned itself.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

at::Tensor contiguous(const at::Tensor& tensor);

// Of the same strides, where the tensor is dense.
at::Tensor cast(const at::Tensor& tensor, at::ScalarType dtype);

// An integer tensor; wider integers saturate.
at::Tensor cast_to_int32(const at::Tensor& tensor);

// Rounded to integers first, which a conversion could make ties of.
at::Tensor cast_rounded(const at::Tensor& tensor, at::ScalarType dtype);

// target = source, of the same shape.
void copy_into(const at::Tensor& target, const at::Tensor& source);

at::Tensor filled(c10::SymIntArrayRef sizes, const at::Scalar& value,
                  const at::TensorOptions& options);

}  // namespace baraquant
