// SPDX-License-Identifier: BSD-3-Clause
// Ranges as the CUDA kernels compute them, without torch or CUDA. A word of a register holds two
// 16-bit keys of range/math.h, which a GPU compares with one instruction, or one wider key. A range
// is two-sided (the lowest and the highest ordered key) or one-sided (`highest` is the greatest
// magnitude, and `lowest` is undefined). All ranges of a launch are of the same kind.
#pragma once

#include "machine/packed_registers.h"
#include "range/math.h"

namespace baraquant::range {

template <typename T>
constexpr Key<T> kMinKey = std::numeric_limits<Key<T>>::min();

// The maximum (and below the minimum) of the 16-bit integers in each half of a word.
BARAQUANT_HD int32_t max_of_halves(int32_t a, int32_t b) {
#if defined(__CUDA_ARCH__)
  return static_cast<int32_t>(__vmaxs2(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
#else
  const int32_t low = static_cast<int16_t>(a) > static_cast<int16_t>(b) ? a : b;
  const int32_t high = (a >> 16) > (b >> 16) ? a : b;
  return (high & ~0xffff) | (low & 0xffff);
#endif
}

BARAQUANT_HD int32_t min_of_halves(int32_t a, int32_t b) {
#if defined(__CUDA_ARCH__)
  return static_cast<int32_t>(__vmins2(static_cast<uint32_t>(a), static_cast<uint32_t>(b)));
#else
  return ~max_of_halves(~a, ~b);
#endif
}

// Sets each half to 0xffff if it is negative, else to 0.
BARAQUANT_HD int32_t signs_of_halves(int32_t word) {
#if defined(__CUDA_ARCH__)
  int32_t signs;  // each byte repeats the sign of byte 1 or 3 (PTX ISA, prmt: bit 3 of a selector)
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(word));
  return signs;
#else
  return (word < 0 ? ~0xffff : 0) | ((word & 0x8000) != 0 ? 0xffff : 0);
#endif
}

// The range, in keys, of a segment (the elements that share a scale) or of a part of it.
template <typename T>
struct Extremes {
  Word<T> lowest, highest;

  BARAQUANT_HD static Extremes of_nothing() { return {kMaxKey<T>, kMinKey<T>}; }

  BARAQUANT_HD void merge(Extremes other, bool two_sided) {
    highest = highest > other.highest ? highest : other.highest;
    if (two_sided) lowest = lowest < other.lowest ? lowest : other.lowest;
  }
};

// The ranges of the elements of several words: one range for each half of a word, or a single one.
template <typename T>
struct WordExtremes {
  static constexpr bool kHalves = kPerWord<T> == 2;
  Word<T> lowest, highest;

  BARAQUANT_HD static WordExtremes of_nothing() {
    if constexpr (kHalves) return {0x7fff7fff, static_cast<int32_t>(0x80008000u)};
    return {kMaxKey<T>, kMinKey<T>};
  }

  BARAQUANT_HD void merge(WordExtremes other, bool two_sided) {
    if constexpr (kHalves) {
      highest = max_of_halves(highest, other.highest);
      if (two_sided) lowest = min_of_halves(lowest, other.lowest);
    } else {
      highest = highest > other.highest ? highest : other.highest;
      if (two_sided) lowest = lowest < other.lowest ? lowest : other.lowest;
    }
  }

  // Adds the elements of a word, given by their bits.
  BARAQUANT_HD void add(Word<T> bits, bool two_sided) {
    Word<T> key;
    if constexpr (kHalves) {
      const int32_t below_sign = 0x7fff7fff;
      key = two_sided ? bits ^ (signs_of_halves(bits) & below_sign) : bits & below_sign;
    } else {
      const T x = bit_cast<T>(bits);
      key = two_sided ? ordered_key(x) : magnitude_key(x);
    }
    merge({key, key}, two_sided);
  }

  // The range of half i of the words.
  BARAQUANT_HD Extremes<T> element(int i) const {
    if constexpr (!kHalves) return {lowest, highest};
    if (i == 1) return {lowest >> 16, highest >> 16};
    return {static_cast<int16_t>(lowest), static_cast<int16_t>(highest)};
  }

  BARAQUANT_HD Extremes<T> all(bool two_sided) const {
    Extremes<T> seen = element(0);
    if constexpr (kHalves) seen.merge(element(1), two_sided);
    return seen;
  }
};

template <typename T>
BARAQUANT_HD Chosen<ComputeType<T>> choose(Extremes<T> seen, const Rule<ComputeType<T>>& rule) {
  const Key<T> lowest = static_cast<Key<T>>(seen.lowest);
  const Key<T> highest = static_cast<Key<T>>(seen.highest);
  if (rule.symmetric) return choose(Magnitude<T>{highest}, rule);
  return choose(MinMax<T>{lowest, highest}, rule);
}

}  // namespace baraquant::range
