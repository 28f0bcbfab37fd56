// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace baraquant::api {

// The handle of an op. Looking it up takes a while: keep it in a static.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload) {
  const std::string full = std::string("baraquant::") + name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(full.c_str(), overload).typed<Signature>();
}

}  // namespace baraquant::api
