// SPDX-License-Identifier: BSD-3-Clause
// From the range of the data to a scale and a zero point, without torch. Every kernel that chooses
// scales or observes ranges calls these functions. Asymmetric scheme: Jacob et al. 2018,
// "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference".
//
// Note [Ranges are integers]
// The bits of a floating-point number, read as an integer, have the order of the numbers (once the
// bits below the sign of a negative one are flipped), and a NaN lies beyond the infinity of its
// sign. So ranges are taken over these integer keys: the result is exact in any order of the
// elements, a NaN remains visible, and the vector units of a CPU compare 16-bit numbers without
// converting them.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "elementwise/math.h"
#include "machine/float_types.h"

namespace baraquant::range {

template <typename T>
using Key = std::conditional_t<sizeof(T) == 2, int16_t,
                               std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>;

template <typename T>
constexpr Key<T> kMaxKey = std::numeric_limits<Key<T>>::max();

template <typename T>
BARAQUANT_HD Key<T> magnitude_key(T x) {
  return static_cast<Key<T>>(bit_cast<Key<T>>(x) & kMaxKey<T>);
}

// On the bits this is its own inverse. The key of -0 is below that of +0.
template <typename T>
BARAQUANT_HD Key<T> ordered_key(T x) {
  const Key<T> bits = bit_cast<Key<T>>(x);
  return static_cast<Key<T>>(bits ^ ((bits >> (8 * sizeof(T) - 1)) & kMaxKey<T>));
}

template <typename T>
BARAQUANT_HD ComputeType<T> value_of_magnitude(Key<T> key) {
  return to_compute<ComputeType<T>>(bit_cast<T>(key));
}

template <typename T>
BARAQUANT_HD ComputeType<T> value_of_ordered(Key<T> key) {
  return to_compute<ComputeType<T>>(bit_cast<T>(ordered_key(bit_cast<T>(key))));
}

// The largest magnitude of the elements of a segment, which are those that share a scale.
// Default-constructed: the range of no elements, the identity of merge().
template <typename T>
struct Magnitude {
  Key<T> max = 0;

  BARAQUANT_HD void add(T x) { merge({magnitude_key(x)}); }
  BARAQUANT_HD void merge(Magnitude other) { max = max > other.max ? max : other.max; }
};

// The lowest and the highest element of a segment. Default-constructed: the identity of merge().
template <typename T>
struct MinMax {
  Key<T> lowest = kMaxKey<T>, highest = static_cast<Key<T>>(-kMaxKey<T> - 1);

  BARAQUANT_HD void add(T x) {
    const Key<T> key = ordered_key(x);
    merge({key, key});
  }
  BARAQUANT_HD void merge(MinMax other) {
    lowest = lowest < other.lowest ? lowest : other.lowest;
    highest = highest > other.highest ? highest : other.highest;
  }
};

// The integers that a scale is chosen for, and whether 0 lies in their middle.
struct RowScheme {
  bool symmetric = true;
  int64_t quant_min = -128, quant_max = 127;

  static constexpr int kFields = 3;
};

// How a scale is chosen: the same for every segment of a call.
template <typename C>
struct Rule {
  bool symmetric = true;
  affine::QuantRange<C> range{-128, 127};
  C zero_point = 0;  // if symmetric
  C steps = 127;     // symmetric: quant_max - zero_point; else half of quant_max - quant_min

  Rule() = default;
  explicit Rule(const RowScheme& scheme)
      : Rule(scheme.quant_min, scheme.quant_max, scheme.symmetric) {}
  Rule(int64_t quant_min, int64_t quant_max, bool is_symmetric)
      : symmetric(is_symmetric),
        range{static_cast<C>(quant_min), static_cast<C>(quant_max)},
        zero_point(static_cast<C>(symmetric_zero_point(quant_min, quant_max))),
        steps(is_symmetric ? static_cast<C>(quant_max - symmetric_zero_point(quant_min, quant_max))
                           : C(0.5) * static_cast<C>(quant_max - quant_min)) {}

  // The middle of the range, rounded up. NB: an arithmetic shift rounds down, also below 0.
  static int64_t symmetric_zero_point(int64_t quant_min, int64_t quant_max) {
    return (quant_min + quant_max + 1) >> 1;
  }
  // The zero point of a segment of zeros or without elements, whose scale is 1.
  int32_t zero_point_of_zeros() const {
    return static_cast<int32_t>(symmetric ? zero_point : range.min);
  }
};

template <typename C>
struct Chosen {
  C scale;
  int32_t zero_point;
};

// NB: a NaN passes through.
template <typename C>
BARAQUANT_HD C usable_scale(C scale, bool only_zeros) {
  constexpr C kMin =
      std::is_same_v<C, double> ? static_cast<C>(0x1p-1022) : static_cast<C>(0x1p-126);
  return only_zeros ? C(1) : scale < kMin ? kMin : scale;
}

template <typename C>
BARAQUANT_HD Chosen<C> choose_symmetric(C amax, const Rule<C>& rule) {
  return {usable_scale(amax / rule.steps, amax == C(0)), static_cast<int32_t>(rule.zero_point)};
}

// xmin and xmax are a range that contains 0, or are NaN. The factors 0.5 keep the difference from
// overflowing.
template <typename C>
BARAQUANT_HD Chosen<C> choose_asymmetric(C xmin, C xmax, const Rule<C>& rule) {
  const C difference = C(0.5) * xmax - C(0.5) * xmin;
  const C scale = usable_scale(difference / rule.steps, xmin == C(0) && xmax == C(0));
  const C z = affine::clamp(rule.range.min - round_half_even(xmin / scale), rule.range);
  return {scale, static_cast<int32_t>(z == z ? z : rule.range.min)};
}

template <typename T>
BARAQUANT_HD Chosen<ComputeType<T>> choose(Magnitude<T> m, const Rule<ComputeType<T>>& rule) {
  return choose_symmetric(value_of_magnitude<T>(m.max), rule);
}

template <typename T>
BARAQUANT_HD Chosen<ComputeType<T>> choose(MinMax<T> m, const Rule<ComputeType<T>>& rule) {
  m.merge({0, 0});  // the key of +0
  return choose_asymmetric(value_of_ordered<T>(m.lowest), value_of_ordered<T>(m.highest), rule);
}

// The range of all batches seen so far. A user starts it as (inf, -inf).
template <typename C>
struct RunningRange {
  C min, max;

  // Whether it is a range of data: finite, with min <= max. NB: false if an end is a NaN.
  BARAQUANT_HD bool is_known() const {
    constexpr C kMax = std::numeric_limits<C>::max();
    return min >= -kMax && min <= max && max <= kMax;
  }
};

// A running range after a batch.
template <typename C>
struct Observation {
  RunningRange<C> range;
  bool skipped;  // the batch was left out, and the range is unchanged
};

// Moves an end of a running range by `share` of the way towards the new one. NB: the difference of
// two finite numbers can overflow, but then they have opposite signs, and the second form does not
// overflow.
template <typename C>
BARAQUANT_HD C average(C running, C found, C share) {
  const C step = found - running;
  const bool is_finite = step - step == C(0);
  return is_finite ? running + share * step : (C(1) - share) * running + share * found;
}

// Merges the range of new elements into a running one. If averaging_constant is negative, the
// result covers both ranges; otherwise each end moves towards the new one by that share of the
// distance, and with 1 the result is the new range. New elements with a NaN or an infinity are left
// out. A running range that is not known is replaced.
template <typename T>
BARAQUANT_HD Observation<ComputeType<T>> observe(RunningRange<ComputeType<T>> running,
                                                 MinMax<T> seen,
                                                 ComputeType<T> averaging_constant) {
  using C = ComputeType<T>;
  const C low = value_of_ordered<T>(seen.lowest), high = value_of_ordered<T>(seen.highest);
  const RunningRange<C> found{low, high};
  if (!found.is_known()) return {running, true};
  if (!running.is_known() || averaging_constant == C(1)) return {found, false};
  if (averaging_constant >= C(0)) {
    return {{average(running.min, low, averaging_constant),
             average(running.max, high, averaging_constant)},
            false};
  }
  // NB: if -0 and +0 meet, the running one is kept.
  return {{low >= running.min ? running.min : low, high <= running.max ? running.max : high},
          false};
}

template <typename C>
BARAQUANT_HD Chosen<C> choose(RunningRange<C> running, const Rule<C>& rule) {
  const C xmin = running.min > C(0) ? C(0) : running.min;
  const C xmax = running.max < C(0) ? C(0) : running.max;
  if (!rule.symmetric) return choose_asymmetric(xmin, xmax, rule);
  return choose_symmetric(-xmin >= xmax || xmin != xmin ? -xmin : xmax, rule);
}

}  // namespace baraquant::range
