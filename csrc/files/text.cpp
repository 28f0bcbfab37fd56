// SPDX-License-Identifier: BSD-3-Clause
#include "files/text.h"

#include <c10/util/Exception.h>

#include <array>
#include <system_error>

namespace baraquant::files {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void append_hex(std::string& text, uint32_t value, int digits) {
  for (int digit = digits - 1; digit >= 0; --digit) text += kHex[value >> (4 * digit) & 15];
}

// Whether repr() escapes a character. Python asks Unicode's tables; these are the common ranges of
// controls, spaces, surrogates and private characters.
bool is_escaped(uint32_t c) {
  constexpr std::array<std::array<uint32_t, 2>, 10> ranges = {{{0, 0x1f},
                                                               {0x7f, 0xa0},
                                                               {0xad, 0xad},
                                                               {0x2000, 0x200f},
                                                               {0x2028, 0x202f},
                                                               {0x205f, 0x206f},
                                                               {0x3000, 0x3000},
                                                               {0xd800, 0xf8ff},
                                                               {0xfeff, 0xfeff},
                                                               {0xe0000, 0x10ffff}}};
  for (const auto& [first, last] : ranges) {
    if (first <= c && c <= last) return true;
  }
  return false;
}

// How many bytes the character at `place` has; 0 for a byte that starts none.
size_t length_of(uint8_t start) {
  if (start < 0x80) return 1;
  if (start < 0xc2) return 0;
  if (start < 0xe0) return 2;
  if (start < 0xf0) return 3;
  return start < 0xf5 ? 4 : 0;
}

// Whether a byte may follow as number `number` of a character.
bool may_follow(uint8_t start, size_t number, uint8_t byte) {
  if ((byte & 0xc0) != 0x80) return false;
  if (number > 1) return true;
  if (start == 0xe0) return byte >= 0xa0;  // else a shorter form would do
  if (start == 0xed) return byte < 0xa0;   // else a surrogate
  if (start == 0xf0) return byte >= 0x90;
  return start != 0xf4 || byte < 0x90;  // else beyond Unicode
}

[[noreturn]] void fail_utf8(std::string_view bytes, size_t place, size_t count, const char* why) {
  std::string text = "'utf-8' codec can't decode byte";
  if (count == 1) {
    text += " 0x";
    append_hex(text, static_cast<uint8_t>(bytes[place]), 2);
    text += " in position " + std::to_string(place);
  } else {
    text += "s in position " + std::to_string(place) + "-" + std::to_string(place + count - 1);
  }
  fail(text, ": ", why);
}

std::string numbers(c10::IntArrayRef values) {
  std::string text;
  for (const int64_t value : values) {
    if (!text.empty()) text += ", ";
    text += std::to_string(value);
  }
  return text;
}

}  // namespace

void fail_with(const std::string& text) { C10_THROW_ERROR(ValueError, text); }

void fail_system(int error, const std::string& path) {
  C10_THROW_ERROR(Error, c10::str("[Errno ", error, "] ", std::generic_category().message(error),
                                  ": ", repr(path)));
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto byte = [&text](uint32_t value) { text += static_cast<char>(value); };
  if (code_point < 0x80) {
    byte(code_point);
    return;
  }
  if (code_point < 0x800) {
    byte(0xc0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      byte(0xe0 | code_point >> 12);
    } else {
      byte(0xf0 | code_point >> 18);
      byte(0x80 | (code_point >> 12 & 0x3f));
    }
    byte(0x80 | (code_point >> 6 & 0x3f));
  }
  byte(0x80 | (code_point & 0x3f));
}

uint32_t next_code_point(std::string_view text, size_t& place) {
  const auto start = static_cast<uint8_t>(text[place++]);
  if (start < 0x80) return start;
  const size_t length = length_of(start);
  uint32_t code_point = start & (0xffU >> (length + 1));
  for (size_t i = 1; i < length && place < text.size(); ++i) {
    code_point = code_point << 6 | (static_cast<uint8_t>(text[place++]) & 0x3f);
  }
  return code_point;
}

void check_utf8(std::string_view bytes) {
  for (size_t place = 0; place < bytes.size();) {
    const auto start = static_cast<uint8_t>(bytes[place]);
    const size_t length = length_of(start);
    if (length == 0) fail_utf8(bytes, place, 1, "invalid start byte");
    for (size_t i = 1; i < length; ++i) {
      if (place + i == bytes.size()) fail_utf8(bytes, place, i, "unexpected end of data");
      if (!may_follow(start, i, static_cast<uint8_t>(bytes[place + i]))) {
        fail_utf8(bytes, place, i, "invalid continuation byte");
      }
    }
    place += length;
  }
}

std::string repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string result(1, quote);
  for (size_t place = 0; place < text.size();) {
    const uint32_t c = next_code_point(text, place);
    if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c == '\\' || c == static_cast<uint32_t>(quote)) {
      result += '\\';
      result += static_cast<char>(c);
    } else if (is_escaped(c)) {
      result += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      append_hex(result, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    } else {
      append_utf8(result, c);
    }
  }
  return result + quote;
}

std::string repr(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  parts.reserve(texts.size());
  for (const std::string& text : texts) parts.push_back(repr(text));
  return c10::str("[", join(parts, ", "), "]");
}

std::string repr(c10::IntArrayRef sizes) { return c10::str("[", numbers(sizes), "]"); }

std::string tuple_repr(c10::IntArrayRef sizes) {
  return c10::str("(", numbers(sizes), sizes.size() == 1 ? ",)" : ")");
}

std::string first_characters(const std::string& text, size_t count) {
  size_t place = 0;
  for (size_t i = 0; i < count && place < text.size(); ++i) next_code_point(text, place);
  return text.substr(0, place);
}

std::string join(const std::vector<std::string>& texts, std::string_view between) {
  std::string result;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) result += between;
    result += texts[i];
  }
  return result;
}

}  // namespace baraquant::files
