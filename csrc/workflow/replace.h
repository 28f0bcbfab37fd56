// SPDX-License-Identifier: BSD-3-Clause
// The modules of a model by their paths, and how they are replaced.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "workflow/transaction.h"

namespace baraquant::workflow {

// One registration of a module; a module that is registered twice has two places.
struct Place {
  std::string path;  // "encoder.0.fc"
  std::string name;  // "fc"
  torch::nn::Module* parent;
  torch::nn::Module* module;
};

// All registrations below `model`, parents before children, in the order of registration. What lies
// below a module that is registered twice is listed for both of its paths.
std::vector<Place> places_of(torch::nn::Module& model);

// The first place of each module, without those in layers of ours, whose quantizers are no layers.
std::vector<Place> first_places(const std::vector<Place>& places);

using Swaps = std::map<const torch::nn::Module*, std::shared_ptr<torch::nn::Module>>;

// Check that nothing owns the modules to be swapped except their places in the model: another owner,
// such as a typed member, would still hold the old module.
//
// Throws c10::ValueError with the path.
void check_owners(const std::string& caller, const std::vector<Place>& places, const Swaps& swaps);

// The same for one module.
void check_owner(const std::string& caller, const std::vector<Place>& places,
                 torch::nn::Module& module);

// Replace one child; `any` is the module as torch::nn::Sequential holds it.
void put(Transaction& change, torch::nn::Module& parent, const std::string& name,
         const std::shared_ptr<torch::nn::Module>& module, const torch::nn::AnyModule& any);

// Put the new modules, which are layers, into every place of the old ones, which are freed with the
// transaction if nothing else holds them. Modules that were freed before may be among the places.
void swap(Transaction& change, const std::vector<Place>& places, const Swaps& swaps);

}  // namespace baraquant::workflow
