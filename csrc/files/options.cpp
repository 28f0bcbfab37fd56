// SPDX-License-Identifier: BSD-3-Clause
#include "files/options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace baraquant::files {
namespace {

constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 4> kFloats = {
    {{"float32", c10::kFloat},
     {"float64", c10::kDouble},
     {"float16", c10::kHalf},
     {"bfloat16", c10::kBFloat16}}};

bool is_int(const Json& value) { return value.integer().has_value(); }
bool is_maybe_int(const Json& value) { return value.is_null() || is_int(value); }
bool is_bool(const Json& value) { return value.is<bool>(); }
bool is_text(const Json& value) { return value.is<std::string>(); }

bool is_dtype(const Json& value) {
  return is_text(value) && std::any_of(kFloats.begin(), kFloats.end(), [&](const auto& one) {
           return one.first == value.get<std::string>();
         });
}

bool is_tuple(const Json& value) {
  if (!value.is<Json::List>()) return false;
  const Json::List& list = value.get<Json::List>();
  return !list.empty() && list.size() <= 3 && std::all_of(list.begin(), list.end(), is_int);
}

bool is_padding(const Json& value) { return is_text(value) || is_tuple(value); }

bool is_mode(const Json& value) {
  return is_text(value) &&
         (value.get<std::string>() == "fixed" || value.get<std::string>() == "dynamic");
}

bool is_rounder(const Json& value) {
  if (value.is_null()) return true;
  const std::array<std::pair<const char*, bool (*)(const Json&)>, 7> types = {
      {{"mode", is_mode},
       {"granularity", is_text},
       {"group_size", is_maybe_int},
       {"axis", is_maybe_int},
       {"quant_min", is_int},
       {"quant_max", is_int},
       {"symmetric", is_bool}}};
  return value.keys().size() == types.size() &&
         std::all_of(types.begin(), types.end(), [&](const auto& type) {
           const Json* entry = value.find(type.first);
           return entry != nullptr && type.second(*entry);
         });
}

}  // namespace

Option bool_option(const std::string& name) { return {name, is_bool, "true or false"}; }
Option int_option(const std::string& name) { return {name, is_int, "a whole number"}; }
Option maybe_int_option(const std::string& name) {
  return {name, is_maybe_int, "a whole number or null"};
}
Option dtype_option(const std::string& name) {
  return {name, is_dtype, "one of float32, float64, float16, bfloat16"};
}
Option name_option(const std::string& name) { return {name, is_text, "a name"}; }
Option sizes_option(const std::string& name) {
  return {name, is_tuple, "one to three whole numbers"};
}
Option padding_option(const std::string& name) {
  return {name, is_padding, "one to three whole numbers"};
}
Option rounder_option(const std::string& name) {
  return {name, is_rounder, "how the input is rounded, or null"};
}

bool bool_of(const Options& options, const std::string& name) {
  return options.at(name).get<bool>();
}

int64_t int_of(const Options& options, const std::string& name) {
  return *options.at(name).integer();
}

std::optional<int64_t> maybe_int_of(const Options& options, const std::string& name) {
  return options.at(name).integer();
}

const std::string& text_of(const Options& options, const std::string& name) {
  return options.at(name).get<std::string>();
}

std::vector<int64_t> list_of(const Options& options, const std::string& name) {
  std::vector<int64_t> result;
  for (const Json& entry : options.at(name).get<Json::List>()) result.push_back(*entry.integer());
  return result;
}

c10::ScalarType dtype_of(const Options& options) {
  return std::find_if(kFloats.begin(), kFloats.end(),
                      [&](const auto& one) { return one.first == text_of(options, "dtype"); })
      ->second;
}

Json json_of(std::optional<int64_t> value) { return value ? Json(*value) : Json(); }

Json json_of(c10::IntArrayRef values) {
  Json::List list;
  for (const int64_t value : values) list.emplace_back(value);
  return list;
}

Json json_of(c10::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

}  // namespace baraquant::files
