// SPDX-License-Identifier: BSD-3-Clause
// Whether a file fits a model: its modules and tensors on the meta device, without the data.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files/header.h"
#include "files/manifest.h"

namespace baraquant::files {

// A model's modules by all of their paths, the model itself first.
class Paths {
 public:
  explicit Paths(torch::nn::Module& model);
  // The module of a path; null if there is none.
  torch::nn::Module* find(const std::string& path) const;
  // All paths of a module, in the order of the model.
  const std::vector<std::string>& of(const torch::nn::Module* module) const;

 private:
  std::map<std::string, torch::nn::Module*> at_;
  std::map<const torch::nn::Module*, std::vector<std::string>> paths_;
};

// Says which names are tensors of quantized layers.
class Inside {
 public:
  explicit Inside(const Manifest& manifest);
  bool operator()(std::string_view name) const { return !layers_of(name).empty(); }
  // The paths of such layers that a name is in, the outermost first.
  std::vector<std::string> layers_of(std::string_view name) const;

 private:
  std::set<std::string, std::less<>> paths_;
  size_t longest_ = 0;  // path
};

// The tensors of a file on the meta device, with the shared ones.
//
// Throws c10::ValueError: sizes of packed or shared tensors do not fit.
Tensors meta_tensors(const std::map<std::string, Entry>& entries, const Manifest& manifest);

// Build the module of a path from its tensors.
//
// Throws c10::ValueError.
std::shared_ptr<torch::nn::Module> build_module(const std::string& path, const StoredModule& stored,
                                                const Tensors& tensors);

// Check the file's modules, and all its tensors, against the model.
//
// Throws c10::ValueError.
void check_fits(const torch::nn::Module& model, const Paths& paths, const Manifest& manifest,
                const Tensors& metas);

}  // namespace baraquant::files
