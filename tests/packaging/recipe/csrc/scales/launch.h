// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type T and calls Backend::round<T>. The CPU and
// CUDA share it.
#pragma once

#include <ATen/core/Tensor.h>

#include "frame/dtypes.h"

namespace baraquant::scales {

template <typename Backend>
struct Launch {
  // Both are contiguous, of one dtype and size, and not empty.
  static void round(const at::Tensor& scale, const at::Tensor& result) {
    with_floating_type(scale.scalar_type(), [&]<typename T>(Type<T>) {
      Backend::template round<T>(static_cast<const T*>(scale.const_data_ptr()),
                                 static_cast<T*>(result.mutable_data_ptr()), scale.numel());
    });
  }
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  void (*round)(const at::Tensor& scale, const at::Tensor& result);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::scales
