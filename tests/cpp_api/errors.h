// SPDX-License-Identifier: BSD-3-Clause
// Prints the errors of wrong calls, for the tests that compare them with Python's.
#pragma once

#include <c10/util/Exception.h>

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
