// SPDX-License-Identifier: BSD-3-Clause
// What an op does to a tensor under autocast.
#pragma once

#include <ATen/autocast_mode.h>

#include "frame/copies.h"
#include "frame/plan.h"

namespace baraquant {

// The tensor in autocast's dtype of the device, if autocast casts such a tensor.
template <at::DeviceType device>
at::Tensor lowered(const at::Tensor& tensor) {
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  if (is_planning() && at::autocast::is_eligible(tensor, device)) return cast(tensor, dtype);
  return at::autocast::cached_cast(dtype, tensor, device);  // the cast of a leaf is cached
}

}  // namespace baraquant
