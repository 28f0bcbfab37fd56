// SPDX-License-Identifier: BSD-3-Clause
// Kernels see a dense tensor as one stretch of memory. An order lists a tensor's dimensions from
// the outermost to the innermost in memory; an empty order means row-major.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "granularity/arguments.h"

namespace baraquant {

// Returns the tensor itself if it is non-overlapping and dense, otherwise a contiguous copy.
at::Tensor dense(const at::Tensor& tensor);

// Returns the order of a dense tensor. It works on symbolic strides.
std::vector<int64_t> memory_order(const at::Tensor& tensor);

// Returns the tensor itself if it is dense in that order, otherwise a copy that is.
at::Tensor in_order(const OpName& op, const char* name, const at::Tensor& tensor,
                    at::IntArrayRef order);

// The entries of a scale tensor are numbered in row-major order. If the memory order of the input
// differs, the kernels read and write the scales per token and per group in the input's order.
class ScaleOrder {
 public:
  ScaleOrder(const at::Tensor& dense_input, const Scope& scope);
  at::Tensor to_memory(const at::Tensor& scale) const;
  // Returns a tensor for the kernel to write: `target` itself if no permutation is needed,
  // otherwise a buffer that restore() permutes into `target`.
  at::Tensor buffer_for(const at::Tensor& target) const;
  void restore(const at::Tensor& buffer, const at::Tensor& target) const;

 private:
  bool permuted_ = false;
  std::vector<int64_t> order_, sizes_;  // of the scale, seen with all of the input's dimensions
};

// Returns which element of the dense input has which scale. Not for Meta tensors.
ScaleMap scale_map_of(const at::Tensor& dense_input, const Scope& scope);

}  // namespace baraquant
