// SPDX-License-Identifier: BSD-3-Clause
// Chooses the layers of a float model to quantize, and prepares a layer for each.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "api/workflow.h"
#include "workflow/layers.h"
#include "workflow/replace.h"

namespace baraquant::workflow {

// A layer to quantize.
struct Chosen {
  std::string path;  // the first one
  torch::nn::Module* module;
  std::shared_ptr<nn::FakeQuantizedLayer> prepared;
  std::string remark;  // what a report adds
};

// What a caller of choose() asks of a layer.
struct Choice {
  std::string caller;
  // The configuration for a kind of layer.
  std::function<QuantConfig(const Kind& kind)> config;
  // Throws for a layer that cannot be quantized at all.
  std::function<void(const torch::nn::Module& module)> check;
};

// The layers of a model, and a report of what is left out. Throws c10::ValueError if there is none,
// or if something besides the model owns one.
std::vector<Chosen> choose(torch::nn::Module& model, const std::vector<Place>& places,
                           const Choice& choice, const Filter& filter, Report& report);

// Call `function`, and put the caller and the path before the message of a c10::ValueError.
void with_path(const std::string& caller, const std::string& path,
               const std::function<void()>& function);

// The message for a model in which nothing can be prepared or quantized.
std::string nothing_to(const char* verb, const torch::nn::Module& model,
                       const std::vector<Place>& places, const Report& report);

// The bytes of a model's parameters and buffers, each counted once.
int64_t total_bytes(const torch::nn::Module& model);
// The elements of the floating ones among some tensors, each counted once.
int64_t total_elements(const std::vector<torch::Tensor>& tensors);

}  // namespace baraquant::workflow
