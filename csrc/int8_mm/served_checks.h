// SPDX-License-Identifier: BSD-3-Clause
// What autograd asks of the arguments of products whose weight is integers already.
#pragma once

#include <ATen/core/grad_mode.h>

#include "frame/checks.h"
#include "granularity/arguments.h"
#include "int8_mm/gradients.h"

namespace baraquant::int8_mm {

inline bool requires_grad(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.requires_grad();
}

// Forward-mode tangents count: the Function refuses them, while a plain call would drop them.
inline bool is_recorded(const at::Tensor& tensor) {
  return requires_grad(tensor) || has_tangent(tensor);
}

// Refuses a scale that requires grad: the op would silently drop its gradient.
inline void check_scale(const char* op, const char* name, const at::Tensor& scale) {
  check_dispatchable(op, name, scale);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_recorded(scale), op, ": expected ", name, " to be a constant, but got one that ",
      requires_grad(scale) ? "requires grad" : "has a forward-mode tangent",
      ", of which the op has no gradient; detach it (", name,
      ".detach()), or train with baraquant::qat_linear or baraquant::fake_quantize_per_tensor");
}

inline void check_zero_point(const char* op, const char* name, const OptionalTensor& zero_point) {
  if (zero_point) check_dispatchable(op, name, *zero_point);
}

}  // namespace baraquant::int8_mm
