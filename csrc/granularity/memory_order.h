// SPDX-License-Identifier: BSD-3-Clause
// Kernels see a dense tensor as a line of memory. An order lists a tensor's dimensions from the
// outermost to the innermost in memory; an empty one means row-major.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "granularity/arguments.h"

namespace baraquant {

// Itself where it is non-overlapping and dense, else a contiguous copy.
at::Tensor dense(const at::Tensor& tensor);

// The order of a dense tensor. Works on symbolic strides.
std::vector<int64_t> memory_order(const at::Tensor& tensor);

// Itself where it is dense in that order, else a copy that is.
at::Tensor in_order(const OpName& op, const char* name, const at::Tensor& tensor,
                    at::IntArrayRef order);

// A scale's entries are numbered in row-major order. Where the input's order differs, per token and
// per group, the kernels take and give them in the input's order.
class ScaleOrder {
 public:
  ScaleOrder(const at::Tensor& dense_input, const Scope& scope);
  at::Tensor to_memory(const at::Tensor& scale) const;
  // A tensor for the kernel to write; restore() brings it into `target`, if it is not that already.
  at::Tensor buffer_for(const at::Tensor& target) const;
  void restore(const at::Tensor& buffer, const at::Tensor& target) const;

 private:
  bool permuted_ = false;
  std::vector<int64_t> order_, sizes_;  // of the scale, with all of the input's dimensions
};

// The geometry of the scales over that dense input. Not for Meta tensors.
ScaleMap scale_map_of(const at::Tensor& dense_input, const Scope& scope);

}  // namespace baraquant
