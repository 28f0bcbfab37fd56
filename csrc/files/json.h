// SPDX-License-Identifier: BSD-3-Clause
// JSON: a strict reader, and a writer that gives the bytes of Python's json.dumps.
//
// LibTorch's headers have no JSON library that a program could rely on, and a program in C++ should
// need nothing besides LibTorch. The checksum of a file covers the text of Python's json.dumps with
// sorted keys, which a library would not write byte for byte either. The reader's errors have the
// texts of Python's json.loads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace baraquant::files {

struct JsonMember;

// A value of JSON. Objects keep the order of their members.
class Json {
 public:
  // A whole number of any size, by its digits.
  struct Integer {
    std::string digits;
  };
  using List = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  // A value becomes JSON by itself, as in a list of them.
  // NOLINTBEGIN(misc-explicit-constructor)
  Json();  // null
  Json(bool value);
  Json(std::string text);
  Json(const char* text);
  Json(Integer value);
  Json(double value);
  Json(int64_t value);
  Json(List list);
  Json(Object object);
  // NOLINTEND(misc-explicit-constructor)
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

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
  // The member of an object, or null. It looks at all of them.
  const Json* find(std::string_view key) const;
  // The member of an object that is known to have it.
  const Json& at(std::string_view key) const { return *find(key); }
  // The sorted keys of an object.
  std::vector<std::string> keys() const;

 private:
  std::variant<std::monostate, bool, Integer, double, std::string, List, Object> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

// These need to know JsonMember.
inline Json::Json() = default;
inline Json::Json(bool value) : value_(value) {}
inline Json::Json(std::string text) : value_(std::move(text)) {}
inline Json::Json(const char* text) : value_(std::string(text)) {}
inline Json::Json(Integer value) : value_(std::move(value)) {}
inline Json::Json(double value) : value_(value) {}
inline Json::Json(int64_t value) : value_(Integer{std::to_string(value)}) {}
inline Json::Json(List list) : value_(std::move(list)) {}
inline Json::Json(Object object) : value_(std::move(object)) {}
inline Json::Json(const Json& other) = default;
inline Json::Json(Json&& other) noexcept = default;
inline Json& Json::operator=(const Json& other) = default;
inline Json& Json::operator=(Json&& other) noexcept = default;
inline Json::~Json() = default;

// Parse JSON; NaN, infinity and keys that stand in an object twice are errors.
//
// Throws c10::ValueError.
Json parse_json(std::string_view text);

// json.dumps(value, sort_keys=True).
std::string dump(const Json& value);

// repr(value) of what json.loads would return; the first `limit` characters.
std::string repr(const Json& value, size_t limit);

}  // namespace baraquant::files
