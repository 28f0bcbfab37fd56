// SPDX-License-Identifier: BSD-3-Clause
// What the fused backward of a learned scale reads and writes, without torch.
#pragma once

#include "machine/float_types.h"

namespace baraquant::affine {

template <typename T>
struct QparamsGradientParams {
  using C = ComputeType<T>;
  const T* dy;
  const T* x;
  T* dx;
  C* scale_gradient;       // [segments]: one for each scale (granularity/segments.h)
  C* zero_point_gradient;  // [segments]; null means not wanted
};

}  // namespace baraquant::affine
