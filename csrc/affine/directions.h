// SPDX-License-Identifier: BSD-3-Clause
// The directions of the affine family: what happens to one element. Each is a struct with
//   First, Second, Result : the storage types of its inputs and its output (Nothing where absent)
//   kMask                 : whether it reads or writes the bit "v lies in the range" per element
//   apply(first, second, bit, scale, zero_point, range) -> result
// The CPU loop (transform_cpu.h) and the CUDA kernel (transform.cuh) run any of them.
#pragma once

#include "affine/affine.h"
#include "float_types.h"

namespace baraquant::affine {

struct Nothing {};
enum class Mask { kNone, kWrite, kRead };

// x -> q. Q is uint8_t for both 8-bit outputs: int8 stores the same bits.
template <typename T, typename Q, Mask mask>
struct Quantize {
  using C = ComputeType<T>;
  using First = T;
  using Second = Nothing;
  using Result = Q;
  static constexpr Mask kMask = mask;

  BARAQUANT_HD static Q apply(T x, Nothing, bool& inside, C scale, C zero_point,
                              QuantRange<C> range) {
    const C v = grid_position(to_compute<C>(x), scale, zero_point);
    if constexpr (mask == Mask::kWrite) inside = is_inside(v, range);
    const C q = quantized_value(v, zero_point, range);
    if constexpr (std::is_same_v<Q, uint8_t>) {
      return static_cast<uint8_t>(static_cast<int32_t>(q));
    } else {
      return from_compute<Q>(q);
    }
  }
};

// x -> y, on the grid, in x's dtype.
template <typename T, Mask mask>
struct FakeQuantize {
  using C = ComputeType<T>;
  using First = T;
  using Second = Nothing;
  using Result = T;
  static constexpr Mask kMask = mask;

  BARAQUANT_HD static T apply(T x, Nothing, bool& inside, C scale, C zero_point,
                              QuantRange<C> range) {
    const C v = grid_position(to_compute<C>(x), scale, zero_point);
    if constexpr (mask == Mask::kWrite) inside = is_inside(v, range);
    return from_compute<T>(fake_quantize(v, scale, zero_point, range));
  }
};

// q -> y. With a zero point of 0 it is its own gradient.
template <typename Q, typename Y, typename Compute>
struct Dequantize {
  using C = Compute;
  using First = Q;
  using Second = Nothing;
  using Result = Y;
  static constexpr Mask kMask = Mask::kNone;

  BARAQUANT_HD static Y apply(Q q, Nothing, bool&, C scale, C zero_point, QuantRange<C>) {
    return from_compute<Y>(dequantize(to_compute<C>(q), scale, zero_point));
  }
};

// (dy, x) -> dx. Through fake_quantize: dy where x was inside. Through quantize: dy / s there.
// NB: a select, never a multiplication: 0 * inf would be NaN.
template <typename G, typename T, bool through_quantize>
struct InputGradient {
  using C = ComputeType<T>;
  using First = G;
  using Second = T;
  using Result = T;
  static constexpr Mask kMask = Mask::kNone;

  BARAQUANT_HD static T apply(G dy, T x, bool&, C scale, C zero_point, QuantRange<C> range) {
    const C v = grid_position(to_compute<C>(x), scale, zero_point);
    const C g = to_compute<C>(dy);
    return from_compute<T>(is_inside(v, range) ? (through_quantize ? g / scale : g) : C(0));
  }
};

// (dy, bit) -> dx: the same from the bit that the forward wrote.
template <typename G, typename T, bool through_quantize>
struct MaskedGradient {
  using C = ComputeType<T>;
  using First = G;
  using Second = Nothing;
  using Result = T;
  static constexpr Mask kMask = Mask::kRead;

  BARAQUANT_HD static T apply(G dy, Nothing, bool& inside, C scale, C, QuantRange<C>) {
    const C g = to_compute<C>(dy);
    return from_compute<T>(inside ? (through_quantize ? g / scale : g) : C(0));
  }
};

// (dy, x) -> dx and this element's share of the gradients of its scale and zero point.
template <typename T>
struct QparamsGradient {
  using C = ComputeType<T>;
  C scale, zero_point;

  BARAQUANT_HD static QparamsGradient apply(T dy, T x, T& dx, C s, C z, QuantRange<C> range) {
    const C g = to_compute<C>(dy);
    const C value = to_compute<C>(x);
    const C v = grid_position(value, s, z);
    dx = from_compute<T>(is_inside(v, range) ? g : C(0));
    return {scale_gradient(g, value, s, z, range), zero_point_gradient(g, v, s, range)};
  }
};

}  // namespace baraquant::affine
