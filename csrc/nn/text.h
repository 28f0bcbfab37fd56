// SPDX-License-Identifier: BSD-3-Clause
// Values in messages, in the form in which Python prints them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "frame/checks.h"

namespace baraquant::text {

inline std::string quoted(const std::string& value) { return "'" + value + "'"; }

inline const char* of(bool value) { return value ? "True" : "False"; }

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

inline std::string shape(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

inline std::string dtype(const at::Tensor& tensor) { return dtype_name(tensor.scalar_type()); }

}  // namespace baraquant::text
