// SPDX-License-Identifier: BSD-3-Clause
// Prints the errors of wrong calls, for the tests that compare them with Python's, and checks.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <cstring>
#include <iostream>
#include <string>
#include <typeinfo>
#include <utility>

// The type of the exception that a call raises, by Python's name, and its text.
template <typename F>
std::pair<std::string, std::string> error_of(const F& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    const std::string name = c10::demangle(typeid(error).name()).substr(std::strlen("c10::"));
    return {name == "Error" ? "RuntimeError" : name, error.what_without_backtrace()};
  }
  return {"none", ""};
}

template <typename F>
void show_error(const std::string& name, const F& call) {
  const auto [kind, text] = error_of(call);
  std::cout << "error\t" << name << '\t' << kind << '\t' << text << '\n';
}

// Whether a call is a ValueError that says this.
template <typename F>
bool says(const char* part, const F& call) {
  const auto [kind, text] = error_of(call);
  return kind == "ValueError" && text.find(part) != std::string::npos;
}

inline void show(const std::string& name, bool right) {
  std::cout << "check\t" << name << '\t' << (right ? "right" : "WRONG") << '\n';
}
