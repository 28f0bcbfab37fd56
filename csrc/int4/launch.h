// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type T where there is one, and calls
// Backend::choose<T>, Backend::quantize<T>, Backend::expand or Backend::pack. The CPU and CUDA share
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include "frame/dtypes.h"
#include "frame/elements.h"
#include "int4/operands.h"

namespace baraquant::int4 {

// A packed weight. All tensors are uint8 and contiguous; an undefined zero_point means kMiddle.
struct PackedWeight {
  at::Tensor values, factor, zero_point;
  int64_t columns = 0, group_size = 2;

  Packed operands() const {
    return {elements<uint8_t>(values), elements<uint8_t>(factor), elements<uint8_t>(zero_point),
            columns, group_size};
  }
};

// weight [rows, columns] is contiguous and has rows; the rest are outputs as in ChooseParams.
struct ChooseCall {
  at::Tensor weight, scale, factor, zero_point;
  int64_t group_size;
  bool symmetric;
  Width width;
};

template <typename Backend>
struct Launch {
  static void choose(const ChooseCall& call) {
    with_floating_type(call.weight.scalar_type(), [&]<typename T>(Type<T>) {
      Backend::template choose<T>({elements<T>(call.weight), call.weight.size(0),
                                   call.weight.size(1), call.group_size, call.symmetric, call.width,
                                   static_cast<ComputeType<T>*>(call.scale.mutable_data_ptr()),
                                   bytes(call.factor), bytes(call.zero_point)});
    });
  }

  // weight [rows, columns] and scale [rows] are contiguous and not empty.
  static void quantize(const at::Tensor& weight, const at::Tensor& scale, Width width,
                       const PackedWeight& packed) {
    with_floating_type(weight.scalar_type(), [&]<typename T>(Type<T>) {
      Backend::template quantize<T>({elements<T>(weight), weight.size(0),
                                     elements<ComputeType<T>>(scale), width, packed.operands(),
                                     bytes(packed.values)});
    });
  }

 private:
  static uint8_t* bytes(const at::Tensor& tensor) {
    return static_cast<uint8_t*>(tensor.mutable_data_ptr());
  }
};

// The kernels of a device, as dispatch.cpp calls them. Nothing is empty but the groups of `choose`.
struct Kernels {
  void (*choose)(const ChooseCall&);
  void (*quantize)(const at::Tensor& weight, const at::Tensor& scale, Width width,
                   const PackedWeight& packed);
  void (*expand)(const ExpandParams&, const at::Tensor& target);
  void (*pack)(const PackParams&, const at::Tensor& target);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::int4
