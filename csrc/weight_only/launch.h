// SPDX-License-Identifier: BSD-3-Clause
// The kernels of this family, for the CPU and inputs of float32 and bfloat16. Elsewhere the op
// dequantizes the weight and calls PyTorch's product (dispatch.cpp).
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

// Multiplies with numbers of the input's dtype, which are made in registers.
void few_rows_on_cpu(const FewRows& call);

// Writes the weight as numbers of the target's dtype.
void dequantize_on_cpu(const Int8Weight& weight, const at::Tensor& target);

}  // namespace baraquant::weight_only
