// SPDX-License-Identifier: BSD-3-Clause
// The elementwise operations of the affine family: what happens to one element. Each is a struct of
//   First, Second, Result : the storage types of its inputs and its output (Nothing if absent)
//   kName                 : its name in a plan (frame/plan.h)
//   kMask                 : whether it reads or writes the mask, a bit "v lies in the range" for
//                           each element
//   kRounds               : whether it rounds x / s, which FastGrid does faster than Grid
//   InFloat               : the operation on numbers that were widened to float before, and whose
//                           results are narrowed afterwards
//   apply(first, second, bit, grid) -> result, for either kind of grid (fast_math.h)
// The CPU loop (elementwise/cpu.h) and the CUDA kernel (elementwise/cuda.cuh) run any of them.
#pragma once

#include "elementwise/fast_math.h"
#include "machine/float_types.h"

namespace baraquant::affine {

struct Nothing {};

// float for a 16-bit type that is computed with in float; any other type stays.
template <typename C, typename T>
using Widened = std::conditional_t<std::is_same_v<C, float> &&
                                       (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>),
                                   float, T>;

enum class Mask { kNone, kWrite, kRead };

// x -> q. Q is uint8_t for both 8-bit outputs: int8 stores the same bits.
template <typename T, typename Q, Mask mask>
struct Quantize {
  using C = ComputeType<T>;
  using First = T;
  using Second = Nothing;
  using Result = Q;
  using InFloat = Quantize<Widened<C, T>, Widened<C, Q>, mask>;
  static constexpr const char* kName = "quantize";
  static constexpr Mask kMask = mask;
  static constexpr bool kRounds = true;

  template <typename G>
  BARAQUANT_HD static Q apply(T first, Nothing, bool& inside, const G& grid) {
    const C x = to_compute<C>(first);
    if constexpr (std::is_same_v<Q, uint8_t> && mask == Mask::kWrite) {
      return static_cast<uint8_t>(static_cast<int32_t>(grid.quantize(x, inside)));
    } else if constexpr (std::is_same_v<Q, uint8_t>) {
      return grid.quantize_byte(x);
    } else {
      return from_compute<Q>(mask == Mask::kWrite ? grid.quantize(x, inside) : grid.quantize(x));
    }
  }
};

// x -> y, the number of the grid that stands for x, in x's dtype.
template <typename T, Mask mask>
struct FakeQuantize {
  using C = ComputeType<T>;
  using First = T;
  using Second = Nothing;
  using Result = T;
  using InFloat = FakeQuantize<Widened<C, T>, mask>;
  static constexpr const char* kName = "fake_quantize";
  static constexpr Mask kMask = mask;
  static constexpr bool kRounds = true;

  template <typename G>
  BARAQUANT_HD static T apply(T first, Nothing, bool& inside, const G& grid) {
    const C x = to_compute<C>(first);
    return from_compute<T>(mask == Mask::kWrite ? grid.fake_quantize(x, inside)
                                                : grid.fake_quantize(x));
  }
};

// Whether an operation can be switched off on the device (Qparams::is_off).
template <typename Op>
constexpr bool kIsSwitchable = false;
template <typename T, Mask mask>
constexpr bool kIsSwitchable<FakeQuantize<T, mask>> = true;

// q -> y. With a zero point of 0 it also computes its own gradient.
template <typename Q, typename Y, typename Compute>
struct Dequantize {
  using C = Compute;
  using First = Q;
  using Second = Nothing;
  using Result = Y;
  using InFloat = Dequantize<Widened<C, Q>, Widened<C, Y>, C>;
  static constexpr const char* kName = "dequantize";
  static constexpr Mask kMask = Mask::kNone;
  static constexpr bool kRounds = false;

  template <typename G>
  BARAQUANT_HD static Y apply(Q q, Nothing, bool&, const G& grid) {
    return from_compute<Y>(grid.dequantize(to_compute<C>(q)));
  }
};

// (dy, x) -> dx. If x was inside, dx is dy through fake_quantize and dy / s through quantize, else
// 0. NB: a select and never a multiplication, because 0 * inf would be NaN.
template <typename DY, typename T, bool through_quantize>
struct InputGradient {
  using C = ComputeType<T>;
  using First = DY;
  using Second = T;
  using Result = T;
  using InFloat = InputGradient<Widened<C, DY>, Widened<C, T>, through_quantize>;
  static constexpr const char* kName = "input_gradient";
  static constexpr Mask kMask = Mask::kNone;
  static constexpr bool kRounds = true;

  template <typename G>
  BARAQUANT_HD static T apply(DY dy, T x, bool&, const G& grid) {
    const C g = to_compute<C>(dy);
    const bool inside = grid.is_inside(to_compute<C>(x));
    return from_compute<T>(inside ? (through_quantize ? g / grid.scale() : g) : C(0));
  }
};

// (dy, bit) -> dx: the same gradient, from the mask bit that the forward wrote.
template <typename DY, typename T, bool through_quantize>
struct MaskedGradient {
  using C = ComputeType<T>;
  using First = DY;
  using Second = Nothing;
  using Result = T;
  using InFloat = MaskedGradient<Widened<C, DY>, Widened<C, T>, through_quantize>;
  static constexpr const char* kName = "masked_gradient";
  static constexpr Mask kMask = Mask::kRead;
  static constexpr bool kRounds = false;

  template <typename G>
  BARAQUANT_HD static T apply(DY dy, Nothing, bool& inside, const G& grid) {
    const C g = to_compute<C>(dy);
    return from_compute<T>(inside ? (through_quantize ? g / grid.scale() : g) : C(0));
  }
};

// (dy, x) -> dx, still in C, and this element's share of the gradients of its scale and zero point.
template <typename T>
struct QparamsGradient {
  using C = ComputeType<T>;
  C scale, zero_point;

  template <typename G>
  BARAQUANT_HD static QparamsGradient apply(T dy, T x, C& dx, const G& grid) {
    const C g = to_compute<C>(dy);
    bool inside, valid;
    const C slope = grid.slope(to_compute<C>(x), inside, valid);
    dx = inside ? g : C(0);
    return {valid ? g * slope : C(0), inside ? C(0) : -grid.scale() * g};
  }
};

}  // namespace baraquant::affine
