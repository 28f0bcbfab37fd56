// SPDX-License-Identifier: BSD-3-Clause
// Whether a tensor that is kept for the backward pass would be alive anyway, so that keeping it
// takes no memory: a leaf (a parameter), or a view of one.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

namespace baraquant {

inline bool is_alive_anyway(const at::Tensor& tensor) {
  return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
}

// While AOTAutograd traces (torch.compile), nothing is a leaf: what comes into the graph,
// parameters among it, has a node that cannot be run, in the place of what is outside.
inline bool is_graph_input(const at::Tensor& tensor) {
  return dynamic_cast<const torch::autograd::Error*>(tensor.grad_fn().get()) != nullptr;
}

}  // namespace baraquant
