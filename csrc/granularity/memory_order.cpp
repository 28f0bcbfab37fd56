// SPDX-License-Identifier: BSD-3-Clause
#include "granularity/memory_order.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "frame/copies.h"
#include "machine/integers.h"

namespace baraquant {
namespace {

std::vector<int64_t> row_major(int64_t dim) {
  std::vector<int64_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int64_t> inverse(at::IntArrayRef order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result[order[i]] = static_cast<int64_t>(i);
  return result;
}

bool is_permutation(at::IntArrayRef order, int64_t dim) {
  std::vector<int64_t> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted == row_major(dim);
}

// Returns how many neighbours along the axis share a scale, per token and per group.
int64_t group_size_of(const Scope& scope, int64_t axis_size) {
  if (scope.granularity == Granularity::kPerToken) return axis_size;
  return scope.group_size.guard_int(__FILE__, __LINE__);
}

}  // namespace

ScaleMap scale_map_of(const at::Tensor& dense_input, const Scope& scope) {
  if (scope.granularity == Granularity::kPerTensor) {
    return make_per_tensor_map(dense_input.numel());
  }
  std::vector<int64_t> order = memory_order(dense_input);
  if (order.empty()) order = row_major(dense_input.dim());
  const int64_t wanted = scope.axis_of(dense_input.dim());
  int64_t outer = 1, axis = 1, inner = 1;
  bool passed = false;
  for (const int64_t d : order) {
    if (d == wanted) {
      axis = dense_input.size(d);
      passed = true;
    } else {
      (passed ? inner : outer) *= dense_input.size(d);
    }
  }
  if (scope.granularity == Granularity::kPerChannel) {
    return make_per_channel_map(outer, axis, inner);
  }
  return make_per_group_map(outer, axis, inner, group_size_of(scope, axis));
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : contiguous(tensor);
}

std::vector<int64_t> memory_order(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return {};
  std::vector<int64_t> order = row_major(tensor.dim());
  const auto strides = tensor.sym_strides();
  const auto sizes = tensor.sym_sizes();
  // NB: stable. A dimension of size 1 may have any stride and may stand anywhere.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[a] > strides[b] || (strides[a] == strides[b] && sizes[a] > sizes[b]);
  });
  return order;
}

at::Tensor in_order(const OpName& op, const char* name, const at::Tensor& tensor,
                    at::IntArrayRef order) {
  if (order.empty()) return contiguous(tensor);
  TORCH_CHECK_VALUE(is_permutation(order, tensor.dim()), op,
                    ": expected order to be a permutation ", "of the ", tensor.dim(),
                    " dimensions of ", name, ", but got ", order);
  const at::Tensor in_memory = tensor.permute(order);
  return in_memory.is_contiguous() ? tensor : contiguous(in_memory).permute(inverse(order));
}

ScaleOrder::ScaleOrder(const at::Tensor& dense_input, const Scope& scope) {
  if (scope.granularity == Granularity::kPerTensor ||
      scope.granularity == Granularity::kPerChannel) {
    return;
  }
  order_ = memory_order(dense_input);
  permuted_ = !order_.empty();
  if (!permuted_) return;
  const int64_t axis = scope.axis_of(dense_input.dim());
  sizes_ = dense_input.sizes().vec();
  const int64_t group = group_size_of(scope, sizes_[axis]);
  sizes_[axis] = divide_up(sizes_[axis], group);
}

at::Tensor ScaleOrder::to_memory(const at::Tensor& scale) const {
  return contiguous(permuted_ ? contiguous(scale).view(sizes_).permute(order_) : scale);
}

at::Tensor ScaleOrder::buffer_for(const at::Tensor& target) const {
  return permuted_ ? at::empty({target.numel()}, target.options()) : target;
}

void ScaleOrder::restore(const at::Tensor& buffer, const at::Tensor& target) const {
  if (!permuted_) return;
  std::vector<int64_t> in_memory(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) in_memory[i] = sizes_[order_[i]];
  copy_into(target.view(sizes_), buffer.view(in_memory).permute(inverse(order_)));
}

}  // namespace baraquant
