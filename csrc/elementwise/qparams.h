// SPDX-License-Identifier: BSD-3-Clause
// Scales and zero points as the kernels see them, without torch.
#pragma once

#include <cstdint>

#include "elementwise/math.h"
#include "granularity/scale_map.h"
#include "machine/float_types.h"

namespace baraquant::affine {

template <typename C>
struct Qparams {
  const C* scale = nullptr;  // null means scale_number for all
  // At most one of these two is set; if both are null, zero_point_number is for all.
  const int32_t* zero_point = nullptr;
  const C* learned_zero_point = nullptr;
  C scale_number = 1, zero_point_number = 0;
  QuantRange<C> range{0, 0};
  ScaleMap map;
  const uint8_t* enabled = nullptr;  // null means enabled; a byte of 0: fake_quantize returns x
  bool own_range = false;  // scales and zero points were computed from the range of x (OwnGrid)

  BARAQUANT_HD bool is_off() const { return enabled && *enabled == 0; }
  BARAQUANT_HD C scale_at(int64_t index) const { return scale ? scale[index] : scale_number; }
  BARAQUANT_HD C zero_point_at(int64_t index) const {
    if (zero_point) return static_cast<C>(zero_point[index]);
    if (learned_zero_point) {
      return affine::learned_zero_point(learned_zero_point[index], range);
    }
    return zero_point_number;
  }
};

// What the kernel of the gradients of scales reads and writes.
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
