// SPDX-License-Identifier: BSD-3-Clause
// The JSON that a file holds in addition to the tensors: the classes of the modules.
//
// {"format": 4, "writer": ..., "modules": {path: {"class", "options", "packed", "further"}},
// "shared_modules": {path: path}, "shared_tensors": {name: name}, "constants": {name: name},
// "unpacked": [path], "fused": [path], "sha256": ...}. Python's manifest.py says what each means.
// Formats 1 to 3 had no "fused"; 1 and 2 had other names for some classes, tensors and keys.
#pragma once

#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>  // uses the macros of the header above

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "files/forms.h"

namespace baraquant::files {

constexpr int64_t kFormat = 4;

// A module of a file.
struct StoredModule {
  const Form* form = nullptr;
  Options options;
  // The shapes of the tensors that are stored as strings of bits.
  std::vector<std::pair<std::string, std::vector<int64_t>>> packed;

  // The width of the integers; 8 for a class that has no such option, of which nothing is packed.
  int64_t weight_bits() const {
    return options.contains("weight_bits") ? int_of(options, "weight_bits") : 8;
  }
};

using Names = torch::OrderedDict<std::string, std::string>;

// The configuration in a file, checked as far as possible without the model.
struct Manifest {
  torch::OrderedDict<std::string, StoredModule> modules;
  Names shared_modules;  // further paths of shared modules, and their first path
  Names shared_tensors;  // further names of shared tensors, and their first name
  Names constants;       // Python's buffers of no state dict, and their tensors
  Names names;           // the current names of tensors that have another name in the file
  std::vector<std::string> fused;  // the paths of modules that compute with fused ops
  std::string sha256;
  Json plain;  // everything except the checksum
};

// Parse and check the JSON.
//
// Throws c10::ValueError: the format is newer, the JSON is invalid, or C++ lacks a class.
Manifest parse_manifest(const std::string& text);

// The JSON that parse_manifest reads, with the checksum of all tensors, which are on the CPU and
// contiguous.
std::string write_manifest(const Json::Object& plain, const Tensors& tensors);

// The SHA-256 of the configuration and of all tensors.
std::string digest(const Json& plain, const Tensors& tensors);

}  // namespace baraquant::files
