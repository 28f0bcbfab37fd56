// SPDX-License-Identifier: BSD-3-Clause
// The JSON that a file holds in addition to the tensors: the classes of the modules, and a checksum
// at its end. Python's manifest.py says what each member means, and what the checksum covers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "files/forms.h"

namespace baraquant::files {

constexpr int64_t kFormat = 1;

// A module of a file.
struct StoredModule {
  const Form* form = nullptr;
  Options options;
  // The shapes of the tensors that are stored as strings of bits.
  std::map<std::string, std::vector<int64_t>> packed;

  // The width of the integers; 8 for a class that has no such option, of which nothing is packed.
  int64_t weight_bits() const {
    return options.contains("weight_bits") ? value_of<int64_t>(options, "weight_bits") : 8;
  }
};

using Names = std::map<std::string, std::string>;

// The configuration in a file, checked as far as possible without the model.
struct Manifest {
  std::map<std::string, StoredModule> modules;
  Names shared_modules;                    // further paths of shared modules, and their first path
  Names shared_tensors;                    // further names of shared tensors, and their first name
  Names constants;                         // Python's buffers of no state dict, and their tensors
  std::vector<std::string> fused;          // the paths of modules that compute with fused ops
  std::vector<std::string> channels_last;  // convolutions whose floating weight has that format
  std::string text;                        // the JSON
};

// Parse and check the JSON.
//
// Throws c10::ValueError: the file is of another format, the JSON is invalid, or C++ lacks a class.
Manifest parse_manifest(const std::string& text);

// The JSON that parse_manifest reads, with the checksum of all tensors, which are on the CPU and
// contiguous.
std::string write_manifest(Json::Object plain, const Tensors& tensors);

// Whether the JSON of a file has the checksum of itself and of the tensors.
bool is_whole(const std::string& text, const Tensors& tensors);

}  // namespace baraquant::files
