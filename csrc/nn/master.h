// SPDX-License-Identifier: BSD-3-Clause
// Rounds parameters to the dtype of QuantConfig's master().
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace baraquant::nn {

// A parameter rounded to "bfloat16" or "float16", in its own dtype; the gradient goes straight
// through. Nothing as the master, or as the parameter, gives the parameter itself.
inline at::Tensor round_master(const at::Tensor& parameter,
                               const std::optional<std::string>& master) {
  if (!master.has_value() || !parameter.defined()) return parameter;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("baraquant::_round_master", "")
                             .typed<at::Tensor(const at::Tensor&, bool)>();
  return op.call(parameter, *master == "bfloat16");
}

}  // namespace baraquant::nn
