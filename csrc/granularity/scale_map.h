// SPDX-License-Identifier: BSD-3-Clause
// Granularity as an index map, without torch. A dense tensor is seen in memory order as
// [outer, axis, inner]; element (o, a, i) uses the scale number
//   o * stride_outer + (a / block) * stride_axis + i * stride_inner.
// The make_* functions below produce maps of three forms only, so that a *run* of neighbours in
// memory uses either one scale (step 0) or consecutive scales (step 1):
//   [outer, axis, inner]  stride_inner 0: a run is `inner` long and has one scale
//   [outer, axis, inner]  stride_inner 1: a run is `inner` long, one scale each
//   [outer, axis, 1]      a run is `block` long (shorter at the end of the axis), one scale
#pragma once

#include <cstdint>

#include "machine/host_device.h"
#include "machine/integers.h"

namespace baraquant {

enum class Granularity : int64_t { kPerTensor = 0, kPerChannel = 1, kPerToken = 2, kPerGroup = 3 };

// Divides by a number that is fixed before the launch. For 0 <= n < 2^31 this takes one wide
// multiplication and a shift (Granlund and Montgomery 1994, figure 4.1 with N = 31).
struct Divisor {
  int64_t value = 1;
  uint32_t multiplier = 1u << 31;
  uint32_t shift = 31;

  Divisor() = default;
  explicit Divisor(int64_t d) : value(d) {
    uint32_t log2_up = 0;
    while (log2_up < 31 && (int64_t(1) << log2_up) < d) ++log2_up;
    shift = 31 + log2_up;
    multiplier = d >= (int64_t(1) << 31)
                     ? 0  // any smaller number divided by it gives 0
                     : static_cast<uint32_t>(((uint64_t(1) << shift) + d - 1) / d);
  }
  BARAQUANT_HD int64_t divide(int64_t n) const {
    return n < (int64_t(1) << 31) ? divide_small(static_cast<uint32_t>(n)) : n / value;
  }
  BARAQUANT_HD uint32_t divide_small(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> shift);
  }
};

struct ScaleMap {
  int64_t outer = 1;
  Divisor axis, inner, block;
  int64_t stride_outer = 0, stride_axis = 0, stride_inner = 0;

  int64_t numel() const { return outer * axis.value * inner.value; }
  int64_t groups() const { return divide_size_up(axis.value, block.value); }
  BARAQUANT_HD bool is_single() const {
    return stride_outer == 0 && stride_axis == 0 && stride_inner == 0;
  }
  // The length of a run. The scales of neighbours within it are `step` apart.
  BARAQUANT_HD int64_t run() const {
    return inner.value > 1 || axis.value == 1 ? inner.value : block.value;
  }
  BARAQUANT_HD int64_t step() const { return stride_inner; }
  // Whether every `pack` neighbours that start at a multiple of `pack` lie within one run.
  bool fits_packs(int64_t pack) const {
    return is_single() ||
           (run() % pack == 0 && (inner.value > 1 || axis.value % pack == 0 || axis.value == 1));
  }

  // The index of the scale of element e (in memory order).
  BARAQUANT_HD int64_t index(int64_t e) const {
    if (is_single()) return 0;
    if (e < (int64_t(1) << 31)) return index_small(static_cast<uint32_t>(e));
    const int64_t line = e / inner.value;
    const int64_t i = e - line * inner.value;
    const int64_t o = line / axis.value;
    const int64_t a = line - o * axis.value;
    return o * stride_outer + (a / block.value) * stride_axis + i * stride_inner;
  }
  // The same for an element below 2^31. The index is below that too, so that its terms may wrap.
  BARAQUANT_HD uint32_t index_small(uint32_t e) const {
    if (is_single()) return 0;
    const uint32_t line = inner.divide_small(e);
    const uint32_t by_outer = static_cast<uint32_t>(stride_outer);
    if (axis.value == 1 && stride_inner == 0) return line * by_outer;
    const uint32_t i = e - line * static_cast<uint32_t>(inner.value);
    const uint32_t o = axis.divide_small(line);
    const uint32_t a = line - o * static_cast<uint32_t>(axis.value);
    return o * by_outer + block.divide_small(a) * static_cast<uint32_t>(stride_axis) +
           i * static_cast<uint32_t>(stride_inner);
  }
};

inline ScaleMap make_per_tensor_map(int64_t numel) {
  ScaleMap map;
  map.inner = Divisor(numel);
  return map;
}

// [outer, axis, inner] in memory order; scales [axis].
inline ScaleMap make_per_channel_map(int64_t outer, int64_t axis, int64_t inner) {
  ScaleMap map;
  map.outer = outer;
  if (inner == 1) {  // neighbours belong to neighbouring channels
    map.inner = Divisor(axis);
    map.stride_inner = 1;
  } else {
    map.axis = Divisor(axis);
    map.inner = Divisor(inner);
    map.stride_axis = 1;
  }
  return map;
}

// [outer, axis, inner] in memory order; scales [outer, ceil(axis / group_size), inner].
inline ScaleMap make_per_group_map(int64_t outer, int64_t axis, int64_t inner, int64_t group_size) {
  ScaleMap map;
  const int64_t block = group_size < axis ? group_size : axis;
  const int64_t groups = divide_size_up(axis, block);
  if (inner == 1 && axis % block == 0) {  // whole groups lie consecutively in memory
    map.outer = outer * groups;
    map.inner = Divisor(block);
    map.stride_outer = 1;
    return map;
  }
  map.outer = outer;
  map.axis = Divisor(axis);
  map.inner = Divisor(inner);
  map.block = Divisor(block);
  map.stride_outer = groups * inner;
  map.stride_axis = inner;
  map.stride_inner = inner == 1 ? 0 : 1;
  return map;
}

}  // namespace baraquant
