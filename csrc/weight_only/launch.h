// SPDX-License-Identifier: BSD-3-Clause
// The kernels of this family, for few rows. With more, and for other dtypes, the op dequantizes the
// weight and calls PyTorch's product (dispatch.cpp).
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::weight_only {

// The integers of a layer, or of some of its outputs. All tensors are contiguous and not empty.
struct Int8Weight {
  at::Tensor values;      // int8 [outputs, columns]
  at::Tensor scale;       // float32 [outputs, groups]
  at::Tensor zero_point;  // int32 [outputs, groups]; undefined: none
  int64_t group_size;

  Int8Weight rows(int64_t begin, int64_t count) const {
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, begin, count) : tensor;
    };
    return {part(values), part(scale), part(zero_point), group_size};
  }
};

struct FewRows {
  at::Tensor input;  // [rows, columns]
  Int8Weight weight;
  at::Tensor bias;    // [outputs] of the input's dtype; undefined: none
  at::Tensor output;  // [rows, outputs] of the input's dtype
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  // Whether they take an input [rows, columns] with rows, and a weight's values with columns.
  bool (*takes)(const at::Tensor& input, const at::Tensor& values, int64_t group_size);
  // Multiplies with numbers of the input's dtype, which are made in registers.
  void (*few_rows)(const FewRows&);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

// Whether a CPU dequantizes a part of the weight at a time for an input of this dtype.
inline bool dequantizes_in_chunks(const at::Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  return input.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

// Writes the weight as numbers of the target's dtype, for which dequantizes_in_chunks() holds.
void dequantize_on_cpu(const Int8Weight& weight, const at::Tensor& target);

}  // namespace baraquant::weight_only
