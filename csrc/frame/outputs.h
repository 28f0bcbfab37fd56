// SPDX-License-Identifier: BSD-3-Clause
// Tensors that an op returns, with symbolic sizes too.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace baraquant {

// Whether there is something to launch for a tensor on this device.
inline bool has_work(const at::Tensor& tensor) { return !tensor.is_meta() && tensor.numel() > 0; }

// The same sizes and strides: on every device, whatever the strides of dimensions of size 1.
inline at::Tensor empty_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return at::empty_strided_symint(tensor.sym_sizes(), tensor.sym_strides(),
                                  tensor.options().dtype(dtype));
}

// One bit for each element.
inline at::Tensor empty_mask(const at::Tensor& input) {
  return at::empty_symint({(input.sym_numel() + 7) / 8}, input.options().dtype(at::kByte));
}

}  // namespace baraquant
