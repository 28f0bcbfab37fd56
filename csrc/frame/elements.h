// SPDX-License-Identifier: BSD-3-Clause
// From a tensor to what kernels read.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

// The elements of a tensor; null if it is undefined.
template <typename T>
const T* elements(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

}  // namespace baraquant
