// SPDX-License-Identifier: BSD-3-Clause
// Tensors that an op returns. Their sizes may be symbolic.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "frame/huge_pages.h"

namespace baraquant {

// Whether there is something to launch for a tensor on this device.
inline bool has_work(const at::Tensor& tensor) { return !tensor.is_meta() && tensor.numel() > 0; }

// Returns a tensor with the same sizes and strides on every device, whatever the strides of
// dimensions of size 1 are.
inline at::Tensor empty_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return with_huge_pages(at::empty_strided_symint(tensor.sym_sizes(), tensor.sym_strides(),
                                                  tensor.options().dtype(dtype)));
}

// An uninitialised tensor without gaps.
inline at::Tensor empty_dense(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  return with_huge_pages(at::empty_symint(sizes, options));
}

// An uninitialised mask: one bit for each element of the input.
inline at::Tensor empty_mask(const at::Tensor& input) {
  return at::empty_symint({(input.sym_numel() + 7) / 8}, input.options().dtype(at::kByte));
}

}  // namespace baraquant
