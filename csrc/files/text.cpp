// SPDX-License-Identifier: BSD-3-Clause
#include "files/text.h"

#include <cstdint>
#include <system_error>

namespace baraquant::files {
namespace {

constexpr size_t kLongest = 900;  // bytes of a message
constexpr size_t kHalf = 440;

}  // namespace

void fail_system(int error, const std::string& path) {
  C10_THROW_ERROR(Error, c10::str(path, ": ", std::generic_category().message(error)));
}

std::string shown(std::string_view message) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string text;
  for (const char c : message) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += {'\\', 'x', hex[byte >> 4], hex[byte & 15]};
    } else {
      text += c;
    }
  }
  if (text.size() <= kLongest) return text;
  // Not within a character.
  const auto continues = [&](size_t i) { return (static_cast<uint8_t>(text[i]) & 0xc0) == 0x80; };
  size_t head = kHalf, tail = text.size() - kHalf;
  while (continues(head)) --head;
  while (tail < text.size() && continues(tail)) ++tail;
  return text.substr(0, head) + "..." + text.substr(tail);
}

bool is_utf8(std::string_view text) {
  for (size_t place = 0; place < text.size();) {
    const auto byte = [&](size_t i) {
      return place + i < text.size() ? static_cast<uint8_t>(text[place + i]) : uint8_t{0};
    };
    const uint8_t first = byte(0), second = byte(1);
    const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4) return false;  // these start none
    for (size_t i = 1; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return false;
    }
    if (first == 0xe0 && second < 0xa0) return false;   // two bytes would do
    if (first == 0xed && second >= 0xa0) return false;  // half of a surrogate pair
    if (first == 0xf0 && second < 0x90) return false;   // three bytes would do
    if (first == 0xf4 && second >= 0x90) return false;  // beyond Unicode
    place += length;
  }
  return true;
}

}  // namespace baraquant::files
