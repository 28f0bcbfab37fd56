// SPDX-License-Identifier: BSD-3-Clause
// The texts of messages, as Python writes them.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baraquant::files {

[[noreturn]] void fail_with(const std::string& text);

// Throws c10::ValueError with a text of all arguments.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  fail_with(c10::str(parts...));
}

// Throws c10::Error with the text of Python's OSError: "[Errno 2] No such file ...: 'path'".
[[noreturn]] void fail_system(int error, const std::string& path);

// repr() of a str.
std::string repr(std::string_view text);

// repr() of a list of str: "['a', 'b']".
std::string repr(const std::vector<std::string>& texts);

// repr() of a list of int: "[2, 3]".
std::string repr(c10::IntArrayRef sizes);

// repr() of a tuple of int: "(2,)".
std::string tuple_repr(c10::IntArrayRef sizes);

// The first characters of a text in UTF-8.
std::string first_characters(const std::string& text, size_t count);

std::string join(const std::vector<std::string>& texts, std::string_view between);

// Add a code point in UTF-8. A lone surrogate takes three bytes, as other code points do.
void append_utf8(std::string& text, uint32_t code_point);

// The code point that begins at `place`, which moves behind it. The text is valid UTF-8, except that
// it may have lone surrogates.
uint32_t next_code_point(std::string_view text, size_t& place);

// Check that a text is UTF-8. Throws c10::ValueError with the text of Python's UnicodeDecodeError.
void check_utf8(std::string_view bytes);

}  // namespace baraquant::files
