// SPDX-License-Identifier: BSD-3-Clause
// Rounds parameters to the dtype of QuantConfig's master().
#pragma once

#include <optional>
#include <string>

#include "api/ops/call.h"

namespace baraquant::nn {

// A parameter rounded to "bfloat16" or "float16", in its own dtype; the gradient goes straight
// through. Nothing as the master, or as the parameter, gives the parameter itself.
inline at::Tensor round_master(const at::Tensor& parameter,
                               const std::optional<std::string>& master) {
  if (!master.has_value() || !parameter.defined()) return parameter;
  return api::call<at::Tensor, "_round_master">(parameter, *master == "bfloat16");
}

}  // namespace baraquant::nn
