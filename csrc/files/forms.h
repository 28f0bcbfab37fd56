// SPDX-License-Identifier: BSD-3-Clause
// How a converted module is stored: its options, which are plain values, and its tensors.
//
// All have the names of Python's constructor's arguments. The constructor checks that they fit, on
// the meta device, before any data is read.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/options.h"

namespace baraquant::files {

// How a class of modules is stored.
struct Form {
  std::string name;   // of the class, in Python
  std::string layer;  // the kind of float layer that it replaces
  std::vector<Option> options;
  // The tensors by their names in the state dict; true if required.
  std::vector<std::pair<std::string, bool>> tensors;
  // Whether a module is of the class.
  bool (*matches)(const torch::nn::Module& module);
  // The options of a module of the class.
  Options (*read)(const torch::nn::Module& module);
  // Call the constructor.
  std::shared_ptr<torch::nn::Module> (*make)(const Options& options, const Tensors& tensors);
};

// What a tensor holds whose name has an end: its dtype and its values, in the table's words, which
// forms.cpp and Python's forms.py explain.
struct TensorRule {
  std::string_view end, dtype, values;
};

// The rules in their order: the first one that fits a name holds. This and what follows, the forms of
// all classes of converted modules that C++ has and what is stored of a rounder, are in
// form_table.cpp, which a program writes.
const std::vector<TensorRule>& tensor_rules();
const std::vector<Form>& form_table();
// The options of a module that rounds an input.
const std::vector<Option>& rounder_table();
Options read_rounder(const nn::FakeQuantizeImpl& layer);
nn::FakeQuantizeOptions rounder_options(const Options& options);

template <typename T>
bool is(const torch::nn::Module& module) {
  return dynamic_cast<const T*>(&module) != nullptr;
}

// How a converted module is stored; null if it is not one.
const Form* form_of(const torch::nn::Module& module);
// How modules of a class of this name are stored; null if C++ has no such class.
const Form* form_named(const std::string& name);
// The names of all classes of converted modules that C++ has.
std::vector<std::string> form_names();

// The options of a module as plain data.
//
// Throws c10::ValueError: a file cannot hold the value of an option.
Json read_options(const Form& form, const torch::nn::Module& module);

// The arguments for options that are read from a file.
//
// Throws c10::ValueError: an option is missing, unknown, or of another type.
Options parse_options(const Form& form, const Json& options);

// Make a module from its tensors, which may be on the meta device.
//
// Throws c10::ValueError, or what the constructor throws.
std::shared_ptr<torch::nn::Module> build(const Form& form, const Options& options,
                                         const Tensors& tensors);

// Check the values in a module's tensors.
//
// Throws c10::ValueError: a tensor is missing or has another dtype, an integer does not fit its
// width, or a scale is not finite and > 0.
void check_values(const Form& form, const torch::nn::Module& module);

}  // namespace baraquant::files
