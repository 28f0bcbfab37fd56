// SPDX-License-Identifier: BSD-3-Clause
// What the modules of <baraquant/nn.h> hold: nothing of a model that was replaced, and nothing that is
// not finite. That they hold nothing derived from their tensors, modules.cpp shows.
#pragma once

#include <baraquant/nn.h>
#include <baraquant/workflow.h>
#include <torch/nn/modules.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "errors.h"
#include "module_configs.h"

namespace {

std::vector<std::weak_ptr<torch::nn::Module>> modules_of(torch::nn::Module& model) {
  std::vector<std::weak_ptr<torch::nn::Module>> found;
  for (const auto& module : model.modules(/*include_self=*/false)) found.push_back(module);
  return found;
}

std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> weights_of(torch::nn::Module& model) {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> found;
  for (const auto& tensor : model.parameters()) found.emplace_back(tensor.getIntrusivePtr());
  return found;
}

template <typename Weak>
bool all_gone(const std::vector<Weak>& found) {
  bool gone = !found.empty();
  for (const auto& one : found) gone = gone && one.expired();
  return gone;
}

// The layers that are quantized, without the activations between them, which stay.
torch::nn::Sequential layers_for(const std::string& config) {
  using namespace torch::nn;
  if (config.starts_with("conv_inputs")) {
    return Sequential(Conv2d(Conv2dOptions(16, 8, 3)), Conv2d(Conv2dOptions(8, 8, 3)));
  }
  return Sequential(Linear(16, 16), Linear(16, 8));
}

void nothing_is_held() {
  for (const auto& [name, config] : configs) {
    auto model = layers_for(name), trained = layers_for(name);
    const auto input = torch::rand({2, 16, 16, 16}) + 1;
    auto floats = modules_of(*model);
    const auto weights = weights_of(*model);
    baraquant::quantize_(*model, config, {.calibration = [&] { model->forward(input); }});
    show(name + ": quantize_ frees the model", all_gone(floats) && all_gone(weights));
    floats = modules_of(*trained);
    baraquant::prepare_(*trained, config, {.calibration = [&] { trained->forward(input); }});
    show(name + ": prepare_ frees the layers", all_gone(floats));
    trained->forward(input);
    const auto prepared = modules_of(*trained);
    const auto masters = weights_of(*trained);
    baraquant::convert_(*trained);
    show(name + ": convert_ frees the model", all_gone(prepared) && all_gone(masters));
  }
}

// A module whose calls change a buffer and draw random numbers.
struct RemembersImpl : torch::nn::Module {
  RemembersImpl() { memory = register_buffer("memory", torch::full({16}, 3.0F)); }
  torch::Tensor forward(const torch::Tensor& input) {
    memory.mul_(0.5).add_(input.mean(0));
    return input + memory + torch::rand({16});
  }
  torch::Tensor memory;
};
TORCH_MODULE(Remembers);

void calibration_leaves_the_state() {
  for (const bool trains : {false, true}) {
    const Remembers first;
    auto model = torch::nn::Sequential(first, torch::nn::Linear(16, 8));
    const auto input = torch::rand({4, 16});
    torch::manual_seed(7);
    const baraquant::Options options{.calibration = [&] { model->forward(input); }};
    if (trains) {
      baraquant::prepare_(*model, baraquant::W8A8Static(), options);
    } else {
      baraquant::quantize_(*model, baraquant::W8A8Static(), options);
    }
    const auto next = torch::rand({3});
    torch::manual_seed(7);
    const bool same = torch::equal(first->memory, torch::full({16}, 3.0F)) &&
                      torch::equal(next, torch::rand({3}));
    show(std::string(trains ? "prepare_" : "quantize_") + ": calibration leaves the state", same);
  }
}

void all_or_nothing() {
  auto model = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto modules = modules_of(*model);
  {
    const torch::NoGradGuard no_grad;
    model->at<torch::nn::LinearImpl>(1).weight.fill_(3e37);  // its scale is no float16
  }
  const auto config = baraquant::W8A8().scale_dtype("float16");
  bool kept = says("", [&] { baraquant::quantize_(*model, config); });
  for (const auto& one : modules) kept = kept && !one.expired();
  show("an error in the last layer changes none", kept);
}

void unknown_scales() {
  baraquant::nn::LearnedFakeQuantize learned;
  const auto bad = torch::tensor({1.0F, std::numeric_limits<float>::quiet_NaN()});
  const auto first = learned->forward(bad);
  show("a NaN in the first batch sets no scale", first.isnan().any().item<bool>() &&
                                                     !learned->is_initialized() &&
                                                     learned->skipped_batches.item<int64_t>() == 1);
  learned->forward(torch::ones({4}));
  show("the next batch is the first",
       learned->is_initialized() && learned->scale.isfinite().all().item<bool>());

  auto model = torch::nn::Sequential(torch::nn::Linear(16, 8));
  baraquant::prepare_(*model, baraquant::W8A8Static());
  model->eval();
  show("evaluation before any data is an error",
       says("seen no data", [&] { model->forward(torch::ones({2, 16})); }));
}

void empty_layers() {
  auto model = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 0));
  const auto report = baraquant::quantize_(*model, baraquant::W8A8());
  show("an empty layer stays floating",
       report.left_out.size() == 1 && report.left_out[0].second == "its weight has no elements" &&
           model->forward(torch::ones({3, 4})).sizes() == at::IntArrayRef({3, 0}));
  show("an input without rows", model->forward(torch::ones({0, 4})).size(0) == 0);
}

void of_held_tensors() {
  nothing_is_held();
  calibration_leaves_the_state();
  all_or_nothing();
  unknown_scales();
  empty_layers();
}

}  // namespace
