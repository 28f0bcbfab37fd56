// SPDX-License-Identifier: BSD-3-Clause
// How Python writes values: json.dumps and repr.
#include <algorithm>
#include <cmath>

#include "files/json.h"
#include "files/text.h"
#include "nn/text.h"

namespace baraquant::files {
namespace {

void append_unit(std::string& text, uint32_t unit) {
  constexpr std::string_view hex = "0123456789abcdef";
  text += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += hex[unit >> shift & 15];
}

// A text in ASCII.
std::string ascii_quoted(const std::string& text) {
  constexpr std::string_view letters = "\"\\bfnrt", meanings = "\"\\\b\f\n\r\t";
  std::string result = "\"";
  for (size_t place = 0; place < text.size();) {
    const uint32_t c = next_code_point(text, place);
    const size_t which = c < 0x80 ? meanings.find(static_cast<char>(c)) : std::string_view::npos;
    if (which != std::string_view::npos) {
      result += '\\';
      result += letters[which];
    } else if (c >= 0x20 && c < 0x7f) {
      result += static_cast<char>(c);
    } else if (c < 0x10000) {
      append_unit(result, c);
    } else {
      append_unit(result, 0xd800 | (c - 0x10000) >> 10);
      append_unit(result, 0xdc00 | ((c - 0x10000) & 0x3ff));
    }
  }
  return result + '"';
}

void append_float(std::string& result, double value, bool in_json) {
  if (in_json && std::isinf(value)) {
    result += value < 0 ? "-Infinity" : "Infinity";
  } else {
    result += text::of(value);
  }
}

void append(std::string& text, const Json& value, bool in_json);

void append_members(std::string& text, const Json::Object& object, bool in_json) {
  std::vector<const JsonMember*> members;
  for (const JsonMember& member : object) members.push_back(&member);
  if (in_json) {
    std::sort(members.begin(), members.end(),
              [](const JsonMember* a, const JsonMember* b) { return a->key < b->key; });
  }
  bool is_first = true;
  for (const JsonMember* member : members) {
    if (!is_first) text += ", ";
    is_first = false;
    text += in_json ? ascii_quoted(member->key) : repr(member->key);
    text += ": ";
    append(text, member->value, in_json);
  }
}

void append(std::string& text, const Json& value, bool in_json) {
  if (value.is_null()) {
    text += in_json ? "null" : "None";
  } else if (value.is<bool>()) {
    text += value.get<bool>() ? (in_json ? "true" : "True") : (in_json ? "false" : "False");
  } else if (value.is<Json::Integer>()) {
    text += value.get<Json::Integer>().digits;
  } else if (value.is<double>()) {
    append_float(text, value.get<double>(), in_json);
  } else if (value.is<std::string>()) {
    text += in_json ? ascii_quoted(value.get<std::string>()) : repr(value.get<std::string>());
  } else if (value.is<Json::List>()) {
    text += '[';
    bool is_first = true;
    for (const Json& entry : value.get<Json::List>()) {
      if (!is_first) text += ", ";
      is_first = false;
      append(text, entry, in_json);
    }
    text += ']';
  } else {
    text += '{';
    append_members(text, value.get<Json::Object>(), in_json);
    text += '}';
  }
}

}  // namespace

std::string dump(const Json& value) {
  std::string text;
  append(text, value, true);
  return text;
}

std::string repr(const Json& value, size_t limit) {
  std::string text;
  append(text, value, false);
  return first_characters(text, limit);
}

}  // namespace baraquant::files
