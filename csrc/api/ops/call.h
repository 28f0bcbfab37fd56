// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace baraquant::api {

// The name of an op, as a parameter of a template.
template <size_t size>
struct Name {
  char text[size];
  constexpr Name(const char (&given)[size]) {  // NOLINT: a literal becomes one by itself
    std::copy_n(given, size, text);
  }
};

// How the dispatcher takes an argument: tensors by reference, everything else by value.
template <typename T>
using Passed = std::conditional_t<
    std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::optional<at::Tensor>>, const T&, T>;

// Calls an op. It is looked up once, because that takes a while.
template <typename Result, Name name, Name overload = "", typename... Arguments>
Result call(Arguments&&... arguments) {
  using Signature = Result(Passed<std::remove_cvref_t<Arguments>>...);
  static const c10::TypedOperatorHandle<Signature> op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow((std::string("baraquant::") + name.text).c_str(), overload.text)
          .template typed<Signature>();
  return op.call(std::forward<Arguments>(arguments)...);
}

}  // namespace baraquant::api
