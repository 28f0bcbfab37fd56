// SPDX-License-Identifier: BSD-3-Clause
// JSON: a strict reader, and a writer that gives the bytes of Python's
// json.dumps(value, sort_keys=True, ensure_ascii=False).
//
// LibTorch's headers have no JSON library that a program could rely on, and a program in C++ should
// need nothing besides LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace baraquant::files {

// A value of JSON.
class Json {
 public:
  // A number as it is written.
  struct Number {
    std::string text;
  };
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  // A value becomes JSON by itself, as in a list of them.
  // NOLINTBEGIN(misc-explicit-constructor)
  Json() = default;  // null
  Json(bool value) : value_(value) {}
  Json(std::string text) : value_(std::move(text)) {}
  Json(const char* text) : value_(std::string(text)) {}
  Json(Number value) : value_(std::move(value)) {}
  Json(int64_t value) : value_(Number{std::to_string(value)}) {}
  Json(List list) : value_(std::move(list)) {}
  Json(Object members);  // it sorts them by their keys
  // NOLINTEND(misc-explicit-constructor)

  bool is_null() const { return is<std::monostate>(); }
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  template <typename T>
  const T& get() const {
    return std::get<T>(value_);
  }

  // The value as a whole number of 64 bits, if it is one.
  std::optional<int64_t> integer() const;
  bool holds_texts() const;  // whether it is a list of texts
  // The member of an object, or null.
  const Json* find(std::string_view key) const;
  // The member of an object that is known to have it.
  const Json& at(std::string_view key) const { return *find(key); }
  // The sorted keys; those of a value that is no object are none.
  std::vector<std::string> keys() const;

 private:
  std::variant<std::monostate, bool, Number, std::string, List, Object> value_;
};

// Parse JSON in UTF-8. NaN, infinity, halves of surrogate pairs and keys that stand in an object
// twice are errors.
//
// Throws c10::ValueError with what is wrong and at which byte.
Json parse_json(std::string_view text);

// A text in UTF-8 as JSON.
std::string quote(std::string_view text);

// A value as JSON.
std::string dump(const Json& value);

// The start of dump(), for messages.
std::string shown(const Json& value);

}  // namespace baraquant::files
