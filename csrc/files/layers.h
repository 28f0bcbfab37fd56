// SPDX-License-Identifier: BSD-3-Clause
// A model as a file sees it: its modules, their kinds and sizes, and its tensors in Python's order.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "files/json.h"

namespace baraquant::files {

// The parameters and buffers of a module by their names, in the order of Python's state dict.
std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::nn::Module& module);

// The sizes of a float or converted layer that must be equal in both, by their names; form_table.cpp
// has it.
using Sizes = std::vector<std::pair<std::string, Json>>;
Sizes sizes_of_layer(const torch::nn::Module& module);

// A parameter or buffer of a module; undefined if there is none of this name.
at::Tensor tensor_of(const torch::nn::Module& module, const std::string& name);

}  // namespace baraquant::files
