// SPDX-License-Identifier: BSD-3-Clause
#include "granularity/memory_order.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "frame/copies.h"

namespace baraquant::affine {
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

int64_t wrapped_axis(const QuantArgs& q, int64_t dim) {
  const int64_t axis = q.granularity == Granularity::kPerToken ? -1 : q.axis;
  return axis < 0 ? axis + dim : axis;
}

ScaleMap make_map(const at::Tensor& input, const QuantArgs& q) {
  if (q.granularity == Granularity::kPerTensor) return make_per_tensor_map(input.numel());
  std::vector<int64_t> order = memory_order(input);
  if (order.empty()) order = row_major(input.dim());
  const int64_t wanted = wrapped_axis(q, input.dim());
  int64_t outer = 1, axis = 1, inner = 1;
  bool passed = false;
  for (const int64_t d : order) {
    if (d == wanted) {
      axis = input.size(d);
      passed = true;
    } else {
      (passed ? inner : outer) *= input.size(d);
    }
  }
  if (q.granularity == Granularity::kPerChannel) return make_per_channel_map(outer, axis, inner);
  const bool per_token = q.granularity == Granularity::kPerToken;
  return make_per_group_map(outer, axis, inner,
                            per_token ? axis : q.group_size.guard_int(__FILE__, __LINE__));
}

// int32, or the compute type for a learned one.
at::Tensor kernel_zero_point(const at::Tensor& zero_point, at::ScalarType compute) {
  return zero_point.is_floating_point() ? cast_rounded(zero_point, compute)
                                        : cast_to_int32(zero_point);
}

}  // namespace

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

ScaleOrder::ScaleOrder(const at::Tensor& dense_input, const QuantArgs& q) {
  if (q.granularity == Granularity::kPerTensor || q.granularity == Granularity::kPerChannel) return;
  order_ = memory_order(dense_input);
  permuted_ = !order_.empty();
  if (!permuted_) return;
  const int64_t axis = wrapped_axis(q, dense_input.dim());
  sizes_ = dense_input.sizes().vec();
  const int64_t group = q.granularity == Granularity::kPerToken
                            ? sizes_[axis]
                            : q.group_size.guard_int(__FILE__, __LINE__);
  sizes_[axis] = (sizes_[axis] + group - 1) / group;
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

Call prepare_call(const at::Tensor& dense_input, const QuantArgs& q) {
  Call call;
  call.map = make_map(dense_input, q);
  call.scale_number = q.scale_number;
  call.zero_point_number = q.zero_point_number;
  call.quant_min = q.quant_min;
  call.quant_max = q.quant_max;
  const ScaleOrder order(dense_input, q);
  if (q.scale) call.scale = order.to_memory(*q.scale);
  if (q.zero_point) {
    const at::ScalarType compute = q.scale ? q.scale->scalar_type() : at::kFloat;
    call.zero_point = order.to_memory(kernel_zero_point(*q.zero_point, compute));
  }
  return call;
}

}  // namespace baraquant::affine
