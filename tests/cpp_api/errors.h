// SPDX-License-Identifier: BSD-3-Clause
// Prints the errors of wrong calls, for the tests that compare them with Python's, and checks.
#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <iostream>
#include <string>

// A line with the type of the exception, by Python's name, and its text.
template <typename F>
void show_error(const std::string& name, const F& call) {
  std::string kind = "none", text;
  try {
    call();
  } catch (const c10::ValueError& error) {
    kind = "ValueError", text = error.what_without_backtrace();
  } catch (const c10::TypeError& error) {
    kind = "TypeError", text = error.what_without_backtrace();
  } catch (const c10::IndexError& error) {
    kind = "IndexError", text = error.what_without_backtrace();
  } catch (const c10::NotImplementedError& error) {
    kind = "NotImplementedError", text = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    kind = "RuntimeError", text = error.what_without_backtrace();
  }
  std::cout << "error\t" << name << '\t' << kind << '\t' << text << '\n';
}

// Whether a call is a ValueError that says this.
inline bool says(const char* part, const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return std::string(error.what_without_backtrace()).find(part) != std::string::npos;
  }
  return false;
}

inline void show(const std::string& name, bool right) {
  std::cout << "check\t" << name << '\t' << (right ? "right" : "WRONG") << '\n';
}
