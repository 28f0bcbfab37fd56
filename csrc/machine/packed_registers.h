// SPDX-License-Identifier: BSD-3-Clause
// Floating-point numbers packed into registers, without torch or CUDA. A word of a register holds
// two numbers of 16 bits, or one of 32 or 64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/float_types.h"

namespace baraquant {

template <typename T>
using Word = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <typename T>
constexpr int kPerWord = sizeof(T) == 2 ? 2 : 1;

// The words of `size` neighbours, as they lie in memory. NB: not a Pack, for which the compiler
// would use a register for each element. A single element of 16 bits fills both halves.
template <typename T, int size>
constexpr int kWordsOf = size > kPerWord<T> ? size / kPerWord<T> : 1;
template <typename T, int size>
struct alignas(kWordsOf<T, size> * sizeof(Word<T>) < 16 ? kWordsOf<T, size> * sizeof(Word<T>) : 16)
    Words {
  static constexpr int kCount = kWordsOf<T, size>;
  Word<T> at[kCount];

  BARAQUANT_HD void fill(T x) {
    for (int w = 0; w < kCount; ++w) {
      if constexpr (kPerWord<T> == 2) {
        at[w] = static_cast<int32_t>(x.bits * 0x10001u);
      } else {
        at[w] = bit_cast<Word<T>>(x);
      }
    }
  }
  BARAQUANT_HD void set(int i, T x) {
    if constexpr (kPerWord<T> == 2) {
      const uint32_t word = static_cast<uint32_t>(at[i / 2]), bits = x.bits;
      at[i / 2] = static_cast<int32_t>(i % 2 == 0 ? (word & 0xffff0000u) | bits
                                                  : (word & 0xffffu) | bits << 16);
    } else {
      at[i] = bit_cast<Word<T>>(x);
    }
  }
  BARAQUANT_HD T get(int i) const {
    if constexpr (kPerWord<T> == 2) {
      return {static_cast<uint16_t>(static_cast<uint32_t>(at[i / 2]) >> (i % 2 * 16))};
    } else {
      return bit_cast<T>(at[i]);
    }
  }
};

}  // namespace baraquant
