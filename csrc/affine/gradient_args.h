// SPDX-License-Identifier: BSD-3-Clause
// What the fused backward of a learned scale reads and writes, free of torch.
#pragma once

#include "machine/float_types.h"

namespace baraquant::affine {

template <typename T>
struct QparamsGradientParams {
  using C = ComputeType<T>;
  const T* dy;
  const T* x;
  T* dx;
  C* scale_gradient;       // [segments]
  C* zero_point_gradient;  // [segments], or null
};

}  // namespace baraquant::affine
