// SPDX-License-Identifier: BSD-3-Clause
#include "files/json.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "files/text.h"

namespace baraquant::files {
namespace {

constexpr int kDeepest = 500;        // values within values; Python's own limit is about 1000
constexpr size_t kMaxDigits = 4300;  // of a whole number, as in Python

bool is_digit(char c) { return '0' <= c && c <= '9'; }

// The steps, and so the errors and their places, are those of Python's scanner.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json all() {
    if (text_.starts_with("\xef\xbb\xbf")) {
      fail_at("Unexpected UTF-8 BOM (decode using utf-8-sig)", 0);
    }
    skip_spaces();
    Json result = value();
    skip_spaces();
    if (place_ < text_.size()) fail_at("Extra data", place_);
    return result;
  }

 private:
  [[noreturn]] void fail_at(const std::string& what, size_t place) const {
    const std::string_view before = text_.substr(0, place);
    const auto characters = [](std::string_view part) {
      return std::count_if(part.begin(), part.end(),
                           [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
    };
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t newline = before.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    fail(what, ": line ", line, " column ", 1 + characters(before.substr(start)), " (char ",
         characters(before), ")");
  }

  bool at(char c) const { return place_ < text_.size() && text_[place_] == c; }

  bool take(std::string_view word) {
    if (!text_.substr(place_).starts_with(word)) return false;
    place_ += word.size();
    return true;
  }

  void skip_spaces() {
    while (at(' ') || at('\t') || at('\n') || at('\r')) ++place_;
  }

  Json value() {
    if (at('"')) return string();
    if (at('{') || at('[')) {
      if (++depth_ > kDeepest) fail("it is nested too deeply");
      Json result = at('{') ? object() : list();
      --depth_;
      return result;
    }
    if (take("null")) return {};
    if (take("true")) return true;
    if (take("false")) return false;
    for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
      if (take(word)) fail(word, " is no JSON");
    }
    return number();
  }

  void skip_digits(size_t& end) const {
    while (end < text_.size() && is_digit(text_[end])) ++end;
  }

  Json number() {
    size_t end = place_;
    if (at('-')) ++end;
    if (end >= text_.size() || !is_digit(text_[end])) fail_at("Expecting value", place_);
    const size_t start = end;
    text_[end] == '0' ? void(++end) : skip_digits(end);
    const size_t count = end - start;
    bool is_integer = true;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      skip_digits(++end);
      is_integer = false;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      const size_t first = exponent;
      skip_digits(exponent);
      if (exponent > first) {
        end = exponent;
        is_integer = false;
      }
    }
    const std::string digits(text_.substr(place_, end - place_));
    place_ = end;
    return is_integer ? integer(digits, count) : floating(digits);
  }

  static Json integer(const std::string& digits, size_t count) {
    if (count > kMaxDigits) {
      fail("Exceeds the limit (4300 digits) for integer string conversion: value has ", count,
           " digits; use sys.set_int_max_str_digits() to increase the limit");
    }
    return Json::Integer{digits == "-0" ? "0" : digits};
  }

  static Json floating(const std::string& digits) {
    double value = 0;
    const auto [_, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    // It does not say whether a number is too large or too small.
    return error == std::errc() ? value : std::strtod(digits.c_str(), nullptr);
  }

  Json list() {
    Json::List result;
    ++place_;
    skip_spaces();
    if (!at(']')) {
      while (true) {
        result.push_back(value());
        skip_spaces();
        if (at(']')) break;
        if (!at(',')) fail_at("Expecting ',' delimiter", place_);
        ++place_;
        skip_spaces();
      }
    }
    ++place_;
    return result;
  }

  Json object() {
    Json::Object result;
    ++place_;
    skip_spaces();
    if (!at('}')) {
      while (true) {
        if (!at('"')) fail_at("Expecting property name enclosed in double quotes", place_);
        std::string key = string();
        skip_spaces();
        if (!at(':')) fail_at("Expecting ':' delimiter", place_);
        ++place_;
        skip_spaces();
        result.push_back({std::move(key), value()});
        skip_spaces();
        if (at('}')) break;
        if (!at(',')) fail_at("Expecting ',' delimiter", place_);
        ++place_;
        skip_spaces();
      }
    }
    ++place_;
    check_unique(result);
    return result;
  }

  static void check_unique(const Json::Object& object) {
    std::vector<const JsonMember*> members;
    for (const JsonMember& member : object) members.push_back(&member);
    std::sort(members.begin(), members.end(), [](const JsonMember* a, const JsonMember* b) {
      return a->key != b->key ? a->key < b->key : a < b;
    });
    const JsonMember* twice = nullptr;  // the first in the text
    for (size_t i = 0; i + 1 < members.size(); ++i) {
      const bool is_twice = members[i]->key == members[i + 1]->key;
      if (is_twice && (twice == nullptr || members[i] < twice)) twice = members[i];
    }
    if (twice != nullptr) fail("the key ", repr(twice->key), " stands there twice");
  }

  std::string string() {
    const size_t start = place_++;
    std::string result;
    while (true) {
      const size_t from = place_;
      while (place_ < text_.size() && text_[place_] != '"' && text_[place_] != '\\') {
        if (static_cast<uint8_t>(text_[place_]) < 0x20) {
          fail_at("Invalid control character at", place_);
        }
        ++place_;
      }
      result += text_.substr(from, place_ - from);
      if (at('"')) break;
      // A backslash and what it stands for
      if (place_ + 1 >= text_.size()) fail_at("Unterminated string starting at", start);
      ++place_;
      escape(result);
    }
    ++place_;
    return result;
  }

  void escape(std::string& result) {
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    const char c = text_[place_];
    if (c == 'u') {
      append_utf8(result, unicode());
      return;
    }
    const size_t which = letters.find(c);
    if (which == std::string_view::npos) fail_at("Invalid \\escape", place_ - 1);
    result += meanings[which];
    ++place_;
  }

  // The four digits behind the "u" at `place`.
  std::optional<uint32_t> hex(size_t place) const {
    if (place + 5 >= text_.size()) return std::nullopt;
    uint32_t result = 0;
    const char* first = text_.data() + place + 1;
    const auto [end, error] = std::from_chars(first, first + 4, result, 16);
    if (error != std::errc() || end != first + 4) return std::nullopt;
    return result;
  }

  // The character of "uXXXX" at the current place, with the second half of a surrogate pair.
  uint32_t unicode() {
    const auto high = hex(place_);
    if (!high) fail_at("Invalid \\uXXXX escape", place_);
    place_ += 5;
    const bool is_high = *high >> 10 == 0xd800 >> 10;
    if (!is_high || place_ + 6 >= text_.size() || !text_.substr(place_).starts_with("\\u")) {
      return *high;
    }
    const auto low = hex(place_ + 1);
    if (!low) fail_at("Invalid \\uXXXX escape", place_ + 1);
    if (*low >> 10 != 0xdc00 >> 10) return *high;
    place_ += 6;
    return 0x10000 + ((*high & 0x3ff) << 10 | (*low & 0x3ff));
  }

  std::string_view text_;
  size_t place_ = 0;
  int depth_ = 0;
};

}  // namespace

Json parse_json(std::string_view text) { return Parser(text).all(); }

std::optional<int64_t> Json::integer() const {
  if (!is<Integer>()) return std::nullopt;
  const std::string& digits = get<Integer>().digits;
  int64_t result = 0;
  const auto [_, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  return error == std::errc() ? std::optional(result) : std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  if (!is<Object>()) return nullptr;
  for (const JsonMember& member : get<Object>()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

std::vector<std::string> Json::keys() const {
  std::vector<std::string> result;
  for (const JsonMember& member : get<Object>()) result.push_back(member.key);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace baraquant::files
