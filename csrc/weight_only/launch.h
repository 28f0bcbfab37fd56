// SPDX-License-Identifier: BSD-3-Clause
// The kernels of this family, for few rows. With more, and for other dtypes, the op dequantizes the
// weight and calls PyTorch's product (dispatch.cpp).
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::weight_only {

// The integers of a layer, or of some of its outputs. All tensors are contiguous and not empty.
struct IntegerWeight {
  at::Tensor values;      // int8 [outputs, columns], or packed: uint8 [outputs, ceil(columns / 2)]
  at::Tensor scale;       // float32 [outputs, groups]
  at::Tensor zero_point;  // int32 [outputs, groups]; undefined: none
  int64_t columns, group_size;

  bool is_packed() const { return values.scalar_type() == at::kByte; }
  IntegerWeight rows(int64_t begin, int64_t count) const {
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
    };
    return {part(values), part(scale), part(zero_point), columns, group_size};
  }
};

struct FewRows {
  at::Tensor input;  // [rows, columns]
  IntegerWeight weight;
  at::Tensor bias;    // [outputs] of the input's dtype; undefined: none
  at::Tensor output;  // [rows, outputs] of the input's dtype
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  // Whether they multiply an input [rows, columns] with rows by numbers of its dtype, which are made
  // in registers.
  bool (*takes)(const at::Tensor& input, const IntegerWeight& weight);
  void (*few_rows)(c10::ArrayRef<FewRows>);  // of an input with some weights, or one
  // Whether they write such a weight as numbers of a dtype.
  bool (*dequantizes)(const IntegerWeight& weight, at::ScalarType dtype);
  void (*dequantize)(const IntegerWeight& weight, const at::Tensor& target);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::weight_only
