// SPDX-License-Identifier: BSD-3-Clause
#include "files/json.h"

#include <algorithm>
#include <charconv>

#include "files/text.h"

namespace baraquant::files {
namespace {

constexpr int kDeepest = 100;  // values within values
constexpr size_t kShown = 80;  // bytes of a value in a message
constexpr std::string_view kLetters = "\"\\bfnrt", kMeanings = "\"\\\b\f\n\r\t";

using Member = std::pair<std::string, Json>;

bool is_digit(char c) { return '0' <= c && c <= '9'; }

void append_utf8(std::string& text, uint32_t code_point) {
  const auto byte = [&text](uint32_t value) { text += static_cast<char>(value); };
  if (code_point < 0x80) {
    byte(code_point);
  } else if (code_point < 0x800) {
    byte(0xc0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    byte(0xe0 | code_point >> 12);
  } else {
    byte(0xf0 | code_point >> 18);
    byte(0x80 | (code_point >> 12 & 0x3f));
  }
  if (code_point >= 0x800) byte(0x80 | (code_point >> 6 & 0x3f));
  if (code_point >= 0x80) byte(0x80 | (code_point & 0x3f));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json all() {
    if (!is_utf8(text_)) fail("it is not UTF-8");
    Json result = value();
    skip_spaces();
    if (place_ < text_.size()) fail_at("expected its end", place_);
    return result;
  }

 private:
  [[noreturn]] static void fail_at(const std::string& what, size_t place) {
    fail(what, " at byte ", place);
  }

  bool at(char c) const { return place_ < text_.size() && text_[place_] == c; }

  bool take(std::string_view word) {
    if (!text_.substr(place_).starts_with(word)) return false;
    place_ += word.size();
    return true;
  }

  void expect(std::string_view word) {
    if (!take(word)) fail_at(c10::str("expected '", word, "'"), place_);
  }

  void skip_spaces() {
    while (at(' ') || at('\t') || at('\n') || at('\r')) ++place_;
  }

  Json value() {
    skip_spaces();
    if (at('"')) return string();
    if (at('{') || at('[')) {
      if (++depth_ > kDeepest) fail_at("it is nested too deeply", place_);
      Json result = at('{') ? object() : list();
      --depth_;
      return result;
    }
    if (take("null")) return {};
    if (take("true")) return true;
    if (take("false")) return false;
    return number();
  }

  // Take digits, at least one.
  void digits() {
    if (place_ >= text_.size() || !is_digit(text_[place_])) {
      fail_at("expected a value of JSON", place_);
    }
    while (place_ < text_.size() && is_digit(text_[place_])) ++place_;
  }

  Json number() {
    const size_t start = place_;
    take("-");
    if (!take("0")) digits();
    if (take(".")) digits();
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      digits();
    }
    return Json::Number{std::string(text_.substr(start, place_ - start))};
  }

  // Whether another entry of a list or an object follows; if none does, it takes the end.
  bool follows(bool is_first, std::string_view end) {
    skip_spaces();
    if (take(end)) return false;
    if (!is_first) expect(",");
    return true;
  }

  Json list() {
    Json::List result;
    for (expect("["); follows(result.empty(), "]");) result.push_back(value());
    return result;
  }

  Json object() {
    Json::Object members;
    for (expect("{"); follows(members.empty(), "}");) {
      skip_spaces();
      std::string key = string();
      skip_spaces();
      expect(":");
      members.emplace_back(std::move(key), value());
    }
    const size_t end = place_;
    Json result(std::move(members));
    const auto& sorted = result.get<Json::Object>();
    const auto twice = std::ranges::adjacent_find(sorted, {}, &Member::first);
    if (twice != sorted.end()) {
      fail_at(c10::str("the key ", quote(twice->first), " stands twice in the object that ends"),
              end);
    }
    return result;
  }

  std::string string() {
    const size_t start = place_;
    std::string result;
    for (expect("\""); !take("\"");) {
      if (place_ >= text_.size()) fail_at("expected the end of the text that begins", start);
      const char c = text_[place_];
      if (static_cast<uint8_t>(c) < 0x20) fail_at("expected no control character", place_);
      ++place_;
      if (c == '\\') {
        escape(result);
      } else {
        result += c;
      }
    }
    return result;
  }

  void escape(std::string& result) {
    const size_t start = place_ - 1;
    if (take("/")) {
      result += '/';
    } else if (take("u")) {
      append_utf8(result, code_point(start));
    } else {
      const size_t which =
          place_ < text_.size() ? kLetters.find(text_[place_]) : std::string_view::npos;
      if (which == std::string_view::npos) fail_at("expected an escape of JSON", start);
      result += kMeanings[which];
      ++place_;
    }
  }

  uint32_t hex(size_t start) {
    uint32_t result = 0;
    const std::string_view four = text_.substr(place_, 4);
    const auto [end, error] = std::from_chars(four.begin(), four.end(), result, 16);
    if (error != std::errc() || end != four.begin() + 4) {
      fail_at("expected four hexadecimal digits in the escape", start);
    }
    place_ += 4;
    return result;
  }

  // The character of an escape that began at `start`, or of two, which are a surrogate pair.
  uint32_t code_point(size_t start) {
    const uint32_t first = hex(start);
    if (first < 0xd800 || first > 0xdfff) return first;
    const uint32_t second = first < 0xdc00 && take("\\u") ? hex(start) : 0;
    if (second < 0xdc00 || second > 0xdfff) fail_at("expected a surrogate pair", start);
    return 0x10000 + ((first & 0x3ff) << 10 | (second & 0x3ff));
  }

  std::string_view text_;
  size_t place_ = 0;
  int depth_ = 0;
};

// Append the entries of a list or an object, with commas between them, until the text is long.
template <typename Entries, typename F>
void append_all(std::string& text, size_t most, const Entries& entries, const F& append_one) {
  bool is_first = true;
  for (const auto& entry : entries) {
    if (text.size() > most) return;
    if (!is_first) text += ", ";
    is_first = false;
    append_one(entry);
  }
}

// Append a value; of one that is longer than `most` only the beginning, and then anything.
void append(std::string& text, const Json& value, size_t most) {
  if (value.is_null()) {
    text += "null";
  } else if (value.is<bool>()) {
    text += value.get<bool>() ? "true" : "false";
  } else if (value.is<Json::Number>()) {
    text += value.get<Json::Number>().text.substr(0, most);
  } else if (value.is<std::string>()) {
    text += quote(std::string_view(value.get<std::string>()).substr(0, most));
  } else if (value.is<Json::List>()) {
    text += '[';
    append_all(text, most, value.get<Json::List>(),
               [&](const Json& one) { append(text, one, most); });
    text += ']';
  } else {
    text += '{';
    append_all(text, most, value.get<Json::Object>(), [&](const auto& one) {
      text += quote(std::string_view(one.first).substr(0, most)) + ": ";
      append(text, one.second, most);
    });
    text += '}';
  }
}

}  // namespace

Json::Json(Object members) {
  std::ranges::sort(members, {}, &Member::first);
  value_ = std::move(members);
}

std::optional<int64_t> Json::integer() const {
  if (!is<Number>()) return std::nullopt;
  const std::string& text = get<Number>().text;
  int64_t result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(result) : std::nullopt;
}

bool Json::holds_texts() const {
  return is<List>() &&
         std::ranges::all_of(get<List>(), [](const Json& one) { return one.is<std::string>(); });
}

const Json* Json::find(std::string_view key) const {
  if (!is<Object>()) return nullptr;
  const Object& members = get<Object>();
  const auto found = std::ranges::lower_bound(members, key, {}, &Member::first);
  return found != members.end() && found->first == key ? &found->second : nullptr;
}

std::vector<std::string> Json::keys() const {
  std::vector<std::string> result;
  if (!is<Object>()) return result;
  for (const auto& [key, _] : get<Object>()) result.push_back(key);
  return result;
}

Json parse_json(std::string_view text) { return Parser(text).all(); }

std::string quote(std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string result(1, '"');
  for (const char c : text) {
    const size_t which = kMeanings.find(c);
    const auto byte = static_cast<uint8_t>(c);
    if (which != std::string_view::npos) {
      result += '\\';
      result += kLetters[which];
    } else if (byte < 0x20) {
      result += "\\u00";
      result += hex[byte >> 4];
      result += hex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string dump(const Json& value) {
  std::string text;
  append(text, value, std::string::npos);
  return text;
}

std::string shown(const Json& value) {
  std::string text;
  append(text, value, kShown);
  if (text.size() <= kShown) return text;
  size_t end = kShown;
  while ((static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;  // within a character
  return text.substr(0, end) + "...";
}

}  // namespace baraquant::files
