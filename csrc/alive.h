// SPDX-License-Identifier: BSD-3-Clause
// Whether a tensor that is kept for the backward pass would be alive anyway, so that keeping it
// takes no memory: a leaf (a parameter), or a view of one.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant {

inline bool is_alive_anyway(const at::Tensor& tensor) {
  return tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf());
}

}  // namespace baraquant
