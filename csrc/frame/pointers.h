// SPDX-License-Identifier: BSD-3-Clause
// Pointers to the numbers of tensors, for kernels. An undefined tensor gives null.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <typename T>
T* written(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

}  // namespace baraquant
