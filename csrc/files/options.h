// SPDX-License-Identifier: BSD-3-Clause
// The plain arguments of the quantized layers: what JSON may hold for each, and how to parse it.
#pragma once

#include <torch/nn/options/conv.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "api/nn/quantizers.h"
#include "files/json.h"

namespace baraquant::files {

// A kind of plain arguments: what JSON may hold.
struct Kind {
  bool (*is_valid)(const Json& value);
  const char* expected;
};
extern const Kind kBool, kIndex, kName, kMode, kDtype, kSizes, kPadding, kRounder;
// Whole numbers, with the limits in the table: in form_table.cpp, which a program writes.
extern const Kind kWidth, kCount, kSize, kMaybeSize, kLevel, kMaybeAxis;

template <int64_t least, int64_t most, bool may_be_null>
bool is_whole(const Json& value) {
  const auto number = value.integer();
  return number ? least <= *number && *number <= most : may_be_null && value.is_null();
}

// A plain argument.
struct Option {
  std::string name;
  const Kind& kind;
};

// Options by their names, all of them valid.
using Options = std::map<std::string, Json>;
using Tensors = std::map<std::string, at::Tensor>;

c10::ScalarType dtype_of(const Json& value);
torch::ExpandingArray<2> image_sizes(const Json& value);
torch::nn::detail::conv_padding_mode_t padding_mode_of(const Json& value);
torch::nn::detail::conv_padding_t<2> padding_of(const Json& value);

// The value of an option in the type of the constructor's argument.
template <typename T>
T value_of(const Options& options, const std::string& name) {
  const Json& value = options.at(name);
  if constexpr (std::is_same_v<T, int64_t>) {
    return *value.integer();
  } else if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    return value.integer();
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    return dtype_of(value);
  } else if constexpr (std::is_same_v<T, torch::ExpandingArray<2>>) {
    return image_sizes(value);
  } else if constexpr (std::is_same_v<T, torch::nn::detail::conv_padding_mode_t>) {
    return padding_mode_of(value);
  } else if constexpr (std::is_same_v<T, torch::nn::detail::conv_padding_t<2>>) {
    return padding_of(value);
  } else {
    return value.get<T>();
  }
}

// A tensor; undefined if there is none.
at::Tensor tensor_of(const Tensors& tensors, const std::string& name);
// The module that rounds the input; null without one.
std::shared_ptr<nn::FakeQuantizeImpl> rounder_of(const Options& options, const Tensors& tensors);

// An argument as JSON: a dtype as "float32".
template <typename T>
Json json_of(const T& value) {
  if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    return value ? Json(*value) : Json();
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    return std::string(c10::getDtypeNames(value).first);
  } else if constexpr (std::is_same_v<T, torch::ExpandingArray<2>>) {
    return json_of(c10::IntArrayRef(*value));
  } else if constexpr (std::is_same_v<T, c10::IntArrayRef>) {
    return Json::List(value.begin(), value.end());
  } else {
    return value;
  }
}
Json json_of(const torch::nn::detail::conv_padding_mode_t& mode);
Json json_of(const torch::nn::detail::conv_padding_t<2>& padding);
Json json_of(const std::shared_ptr<nn::FakeQuantizeImpl>& rounder);
// A size, which is absent also where it is 0.
Json above_zero(std::optional<int64_t> size);

}  // namespace baraquant::files
