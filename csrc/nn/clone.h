// SPDX-License-Identifier: BSD-3-Clause
// What the clones of all modules share.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>

namespace baraquant::nn {

inline torch::Tensor cloned(const torch::Tensor& tensor,
                            const std::optional<torch::Device>& device) {
  if (!tensor.defined()) return tensor;
  const auto values = tensor.detach();
  const bool moves = device.has_value() && *device != tensor.device();
  return moves ? values.to(*device) : values.clone();
}

inline torch::Tensor cloned_parameter(const torch::Tensor& tensor,
                                      const std::optional<torch::Device>& device) {
  auto copy = cloned(tensor, device);
  return copy.defined() ? copy.set_requires_grad(tensor.requires_grad()) : copy;
}

template <typename Module>
std::shared_ptr<Module> cloned(const std::shared_ptr<Module>& module,
                               const std::optional<torch::Device>& device) {
  return module == nullptr ? nullptr : std::dynamic_pointer_cast<Module>(module->clone(device));
}

// Give a new module copies of the parameters and buffers of another one of the same kind, which may
// have more.
inline void copy_tensors(torch::nn::Module& to, const torch::nn::Module& from,
                         const std::optional<torch::Device>& device) {
  const torch::NoGradGuard no_grad;
  const auto parameters = from.named_parameters(/*recurse=*/false);
  const auto buffers = from.named_buffers(/*recurse=*/false);
  for (const auto& item : to.named_parameters(/*recurse=*/false)) {
    item->set_data(cloned(parameters[item.key()], device));
  }
  for (const auto& item : to.named_buffers(/*recurse=*/false)) {
    item->set_data(cloned(buffers[item.key()], device));
  }
  to.train(from.is_training());
}

}  // namespace baraquant::nn

// torch::nn's containers clone their children with this function: the module takes the place of one
// that was made by its parent.
#define BARAQUANT_CLONE_CHILD(Class)                                                         \
  void Class::clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) { \
    *this = dynamic_cast<Class&>(*other.clone(device));                                      \
  }

// The clone of a module that the constructor makes of the last arguments, and that `finish` completes.
// Both may name `device`; the constructor may be private.
#define BARAQUANT_CLONE_BY(Class, finish, ...)                             \
  std::shared_ptr<torch::nn::Module> Class::clone(                         \
      [[maybe_unused]] const std::optional<torch::Device>& device) const { \
    const std::shared_ptr<Class> copy(new Class(__VA_ARGS__));             \
    finish;                                                                \
    return copy;                                                           \
  }                                                                        \
  BARAQUANT_CLONE_CHILD(Class)

// The same where the constructor's arguments say all.
#define BARAQUANT_CLONE(Class, ...) \
  BARAQUANT_CLONE_BY(Class, copy->train(is_training()), __VA_ARGS__)
