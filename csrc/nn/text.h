// SPDX-License-Identifier: BSD-3-Clause
// Values in messages, in the form in which Python prints them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "frame/checks.h"

namespace baraquant::text {

inline std::string quoted(const std::string& value) { return "'" + value + "'"; }

inline const char* of(bool value) { return value ? "True" : "False"; }

inline std::string of(int64_t value) { return std::to_string(value); }

inline std::string of(std::optional<int64_t> value) {
  return value.has_value() ? std::to_string(*value) : "None";
}

// 0.5, 2.0, 1e-07, nan: the shortest text that reads back as the same number.
inline std::string of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer.begin(), buffer.end(), value, format).ptr;
  std::string result(buffer.begin(), end);
  return plain && result.find('.') == std::string::npos ? result + ".0" : result;
}

// ", input=int8 per_token symmetric dynamic".
inline std::string input(int64_t bits, const std::string& granularity, bool symmetric,
                         const char* how) {
  return c10::str(", input=int", bits, " ", granularity, symmetric ? " symmetric " : " asymmetric ",
                  how);
}

// What scales and parameters can be rounded to.
constexpr std::initializer_list<const char*> scale_rules = {"search", "lattice", "max"};
constexpr std::initializer_list<const char*> scale_dtypes = {"float32", "bfloat16", "float16"};
constexpr std::initializer_list<const char*> masters = {"bfloat16", "float16"};

// Check an argument of a class: throws what was wanted, and what it got instead.
template <typename Owner>
void check(const Owner& owner, bool fits, const std::string& wanted, const std::string& got) {
  TORCH_CHECK_VALUE(fits, owner, ": expected ", wanted, ", but got ", got);
}

// Check that an argument is one of some names.
inline void check_choice(const char* owner, const char* name, std::string_view value,
                         std::initializer_list<const char*> choices) {
  std::string all;
  for (const char* choice : choices) {
    if (value == choice) return;
    all += (all.empty() ? "" : ", ") + std::string(choice);
  }
  TORCH_CHECK_VALUE(false, owner, ": expected ", name, " to be one of ", all, ", but got ",
                    quoted(std::string(value)));
}

inline std::string shape(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

inline std::string dtype(const at::Tensor& tensor) { return dtype_name(tensor.scalar_type()); }

}  // namespace baraquant::text
