// SPDX-License-Identifier: BSD-3-Clause
// The plain arguments of the quantized layers: what JSON may hold for each, and how to parse it.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "files/json.h"

namespace baraquant::files {

// A plain argument: its name, and what JSON may hold.
struct Option {
  std::string name;
  bool (*is_valid)(const Json& value);
  std::string expected;
};

Option bool_option(const std::string& name);
Option int_option(const std::string& name);
Option maybe_int_option(const std::string& name);
Option dtype_option(const std::string& name);
Option name_option(const std::string& name);
Option sizes_option(const std::string& name);
Option padding_option(const std::string& name);
Option rounder_option(const std::string& name);

// Options by their names, all of them valid.
using Options = std::map<std::string, Json>;

bool bool_of(const Options& options, const std::string& name);
int64_t int_of(const Options& options, const std::string& name);
std::optional<int64_t> maybe_int_of(const Options& options, const std::string& name);
const std::string& text_of(const Options& options, const std::string& name);
std::vector<int64_t> list_of(const Options& options, const std::string& name);
c10::ScalarType dtype_of(const Options& options);

Json json_of(std::optional<int64_t> value);
Json json_of(c10::IntArrayRef values);
Json json_of(c10::ScalarType dtype);  // "float32"

}  // namespace baraquant::files
