// SPDX-License-Identifier: BSD-3-Clause
// What autograd records of a call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "frame/checks.h"

namespace baraquant {

inline bool requires_grad(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

inline bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(/*level=*/0).defined(); }

// Forward-mode tangents count: a Function refuses them, while a plain call would drop them.
inline bool is_recorded(const at::Tensor& tensor) {
  return requires_grad(tensor) || has_tangent(tensor);
}
inline bool is_recorded(const std::optional<at::Tensor>& tensor) {
  return tensor && is_recorded(*tensor);
}

// Refuses a scale that requires grad: the op would silently drop its gradient.
inline void check_constant(const char* op, const char* name, const at::Tensor& scale) {
  check_dispatchable(op, name, scale);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_recorded(scale), op, ": expected ", name, " to be a constant, but got one that ",
      requires_grad(scale) ? "requires grad" : "has a forward-mode tangent",
      ", of which the op has no gradient; detach it (", name,
      ".detach()), or train with baraquant::qat_linear or baraquant::fake_quantize_per_tensor");
}

}  // namespace baraquant
