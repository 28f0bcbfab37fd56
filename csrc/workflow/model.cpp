// SPDX-License-Identifier: BSD-3-Clause
// What a program does with the layers and tensors of a model by their names; reports.
#include <algorithm>
#include <array>
#include <cstdio>

#include "api/workflow.h"
#include "workflow/layers.h"
#include "workflow/replace.h"

namespace baraquant {

namespace {

std::string in_units(int64_t bytes) {
  constexpr std::array units = {"B", "KB", "MB", "GB", "TB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  while (size >= 1000 && unit + 1 < units.size()) {
    size /= 1000;
    ++unit;
  }
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
  return text.data();
}

}  // namespace

namespace workflow {

void replace_child(torch::nn::Module& parent, const std::string& name,
                   const std::shared_ptr<torch::nn::Module>& module,
                   const torch::nn::AnyModule& any) {
  const auto children = parent.named_children();
  TORCH_CHECK_VALUE(children.contains(name), "baraquant::replace_module: expected a child ", name,
                    " of ", type_name(parent), ", but there is none");
  TORCH_CHECK_VALUE(module != nullptr,
                    "baraquant::replace_module: expected a module, but got none");
  Transaction change;
  put(change, parent, name, module, any);
  change.finish();
}

}  // namespace workflow

torch::Tensor call(torch::nn::Module& parent, const std::string& name, const torch::Tensor& input) {
  const auto children = parent.named_children();
  TORCH_CHECK_VALUE(children.contains(name), "baraquant::call: expected a child ", name, " of ",
                    workflow::type_name(parent), ", but there is none");
  const auto output = workflow::call_layer(*children[name], input);
  TORCH_CHECK_VALUE(output.has_value(), "baraquant::call: expected ", name,
                    " to be a Linear, Conv2d, Embedding, Sequential or a layer of baraquant, but "
                    "got a ",
                    workflow::type_name(*children[name]));
  return *output;
}

std::map<std::string, torch::Tensor> state_dict(const torch::nn::Module& model) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace(item.key(), item->detach());
  for (const auto& item : model.named_buffers()) tensors.emplace(item.key(), item->detach());
  return tensors;
}

void load_state_dict(torch::nn::Module& model, const std::map<std::string, torch::Tensor>& given) {
  auto tensors = given;
  std::vector<nn::Quantizer*> quantizers;
  model.apply([&](const std::string& path, torch::nn::Module& module) {
    auto* quantizer = dynamic_cast<nn::Quantizer*>(&module);
    if (quantizer == nullptr) return;
    quantizer->complete(tensors, path);
    quantizers.push_back(quantizer);
  });
  const auto own = state_dict(model);
  for (const auto& [name, tensor] : own) {
    const auto found = tensors.find(name);
    TORCH_CHECK_VALUE(found != tensors.end(), "baraquant::load_state_dict: expected a tensor ",
                      name, ", but there is none");
    TORCH_CHECK_VALUE(found->second.sizes() == tensor.sizes(), "baraquant::load_state_dict: ", name,
                      ": expected the shape ", tensor.sizes(), ", but got ", found->second.sizes());
    // The buffer of a rotated FakeQuantizedLinear.
    const bool is_mark = name == "rotation" || name.ends_with(".rotation");
    TORCH_CHECK_VALUE(
        !is_mark || tensor.equal(found->second.to(tensor)), "baraquant::load_state_dict: ", name,
        ": expected a weight that was rotated in the same blocks, but got another one");
  }
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(own.contains(name), "baraquant::load_state_dict: expected no tensor ", name,
                      ", which the model does not have");
  }
  const auto note = [&] {
    for (auto* quantizer : quantizers) quantizer->loaded();
  };
  workflow::Transaction change;
  change.undo_by(note);  // of the values before
  for (const auto& [name, tensor] : own) change.write(tensor, tensors.at(name));
  note();
  change.finish();
}

std::string Report::str() const {
  size_t width = 0;
  for (const auto& one : changed) width = std::max(width, one.first.size());
  for (const auto& one : left_out) width = std::max(width, one.first.size());
  std::string text;
  const auto add = [&](const std::string& path, const std::string& what) {
    text += path + std::string(width - path.size() + 2, ' ') + what + "\n";
  };
  for (const auto& one : changed) add(one.first, one.second);
  for (const auto& one : left_out) add(one.first, "left out: " + one.second);
  const auto share = total_parameters == 0 ? 0.0
                                           : 100.0 * static_cast<double>(quantized_parameters) /
                                                 static_cast<double>(total_parameters);
  std::array<char, 40> percent{};
  std::snprintf(percent.data(), percent.size(), "%.1f %%", share);
  return text + std::to_string(changed.size()) + " changed, " + std::to_string(left_out.size()) +
         " left out; " + percent.data() + " of " + std::to_string(total_parameters) +
         " parameters in integers; " + in_units(bytes_before) + " before, " +
         in_units(bytes_after) + " now";
}

}  // namespace baraquant
