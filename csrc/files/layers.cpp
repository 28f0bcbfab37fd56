// SPDX-License-Identifier: BSD-3-Clause
#include "files/layers.h"

namespace baraquant::files {
namespace {

void append_state(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<std::pair<std::string, at::Tensor>>& state) {
  for (const auto& item : module.named_parameters(false)) {
    state.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(false)) {
    state.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_children()) {
    append_state(*item.value(), prefix + item.key() + ".", state);
  }
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  append_state(module, "", state);
  return state;
}

at::Tensor tensor_of(const torch::nn::Module& module, const std::string& name) {
  for (const auto& [own, tensor] : state_of(module)) {
    if (own == name) return tensor;
  }
  return {};
}

}  // namespace baraquant::files
