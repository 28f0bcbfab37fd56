// SPDX-License-Identifier: BSD-3-Clause
// The header of a safetensors file: it is checked as a whole before a tensor is created.
//
// Layout: eight bytes, little-endian, the length of the header; the header, a JSON object
// {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}; the data.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/disk.h"
#include "files/json.h"

namespace baraquant::files {

// A tensor without its data.
struct Layout {
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  bool operator==(const Layout&) const = default;
};

// The entry of one tensor in the header; bytes count from the start of the data.
struct Entry {
  Layout layout;
  int64_t begin;
  int64_t end;
};

// A checked header: the tensors fill the data without gap or overlap.
struct Header {
  std::map<std::string, Entry> tensors;
  std::string configuration;  // the JSON of save()
  int64_t data_start = 0;     // of the data in the file
};

// Read and check the header of a file.
//
// Throws c10::ValueError.
Header read_header(const InputFile& file);

// How safetensors names a dtype; empty if a file cannot hold it.
std::string_view stored_name(c10::ScalarType dtype);

// The value as a list of at most 64 nonnegative integers of 64 bits, if it is one.
std::optional<std::vector<int64_t>> sizes_of(const Json& value);

// The product of sizes, times a factor; nothing if 64 bits do not hold it.
std::optional<int64_t> product(c10::IntArrayRef sizes, int64_t factor);

// A header for tensors, and the tensors in the order of their data: the bytes that safetensors
// writes.
std::pair<std::string, std::vector<at::Tensor>> write_header(
    const std::map<std::string, at::Tensor>& tensors, const std::string& configuration);

}  // namespace baraquant::files
