// SPDX-License-Identifier: BSD-3-Clause
// The errors of this folder, and what their texts need.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <string_view>

namespace baraquant::files {

// Throws c10::ValueError with a text of all arguments.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  C10_THROW_ERROR(ValueError, c10::str(parts...));
}

// Throws c10::Error: what the system says about a path.
[[noreturn]] void fail_system(int error, const std::string& path);

// A message in one line of bounded length; names of a file may be anything.
std::string shown(std::string_view message);

// The result of a call. Its errors begin with a place, such as the path of a module.
template <typename F>
auto within(const std::string& place, const F& call) {
  try {
    return call();
  } catch (const c10::ValueError& error) {
    fail(place, shown(std::string_view(error.msg())));
  } catch (const c10::TypeError& error) {
    fail(place, shown(std::string_view(error.msg())));
  }
}

bool is_utf8(std::string_view text);

}  // namespace baraquant::files
