// SPDX-License-Identifier: BSD-3-Clause
// What an op's class for autograd needs, and what its forward pass keeps for its backward pass.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <tuple>

namespace baraquant {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The base of such a class; torch.compile may trace its backward pass.
template <typename Own>
struct Function : torch::autograd::Function<Own> {
  static constexpr bool is_traceable = true;
};

// The class of an op (named_op.h) of an input and another argument, whose gradient is the incoming
// one: nothing is kept for it.
template <const auto& op>
struct StraightThrough : Function<StraightThrough<op>> {
  template <typename Other>
  static Variable forward(AutogradContext*, const at::Tensor& input, const Other& other) {
    return op.below_autograd(input, other);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], {}}; }
};

// Tensors are kept by name: `Saved` is a struct of tensors whose fields() returns a std::tie of
// them. An undefined tensor stays undefined.
template <typename Saved>
void save_tensors(AutogradContext* ctx, Saved saved) {
  std::apply([&](const auto&... tensor) { ctx->save_for_backward({tensor...}); }, saved.fields());
}

template <typename Saved>
Saved saved_tensors(const AutogradContext* ctx) {
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
