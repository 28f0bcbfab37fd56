// SPDX-License-Identifier: BSD-3-Clause
// What a forward pass keeps for its backward pass.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <tuple>

namespace baraquant {

// Tensors are kept by name: `Saved` is a struct of tensors whose fields() returns a std::tie of
// them. An undefined tensor stays undefined.
template <typename Saved>
void save_tensors(torch::autograd::AutogradContext* ctx, Saved saved) {
  std::apply([&](const auto&... tensor) { ctx->save_for_backward({tensor...}); }, saved.fields());
}

template <typename Saved>
Saved saved_tensors(const torch::autograd::AutogradContext* ctx) {
  Saved saved;
  auto next = ctx->get_saved_variables();
  size_t i = 0;
  std::apply([&](auto&... tensor) { ((tensor = std::move(next[i++])), ...); }, saved.fields());
  return saved;
}

// One bit for each element of the input: whether it lay inside the range.
struct SavedMask {
  at::Tensor mask;
  auto fields() { return std::tie(mask); }
};

// Whether keeping a tensor takes no memory, because something else keeps it in any case: a leaf (a
// parameter), or a view of one.
inline bool is_kept_anyway(const at::Tensor& tensor) {
  return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
}

// While AOTAutograd traces (torch.compile), the inputs of the graph, parameters among them, are not
// leaves: their grad_fn is a placeholder, a node Error.
inline bool is_graph_input(const at::Tensor& tensor) {
  return dynamic_cast<const torch::autograd::Error*>(tensor.grad_fn().get()) != nullptr;
}

}  // namespace baraquant
