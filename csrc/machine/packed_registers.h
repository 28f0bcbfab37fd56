// SPDX-License-Identifier: BSD-3-Clause
// Numbers packed into registers, without torch or CUDA. A word of a register holds four bytes, two
// numbers of 16 bits, or one of 32 or 64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/float_types.h"

namespace baraquant {

template <typename T>
using Word = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <typename T>
constexpr int kPerWord = sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1;

// The words of `size` neighbours, as they lie in memory. NB: not a Pack, for which the compiler
// would use a register for each element. Fewer elements than a word holds repeat in it.
template <typename T, int size>
constexpr int kWordsOf = size > kPerWord<T> ? size / kPerWord<T> : 1;
template <typename T, int size>
struct alignas(kWordsOf<T, size> * sizeof(Word<T>) < 16 ? kWordsOf<T, size> * sizeof(Word<T>) : 16)
    Words {
  static constexpr int kCount = kWordsOf<T, size>;
  Word<T> at[kCount];

  BARAQUANT_HD void fill(T x) {
    for (int w = 0; w < kCount; ++w) {
      if constexpr (kPerWord<T> > 1) {
        at[w] = static_cast<int32_t>(bits_of(x) * (sizeof(T) == 2 ? 0x10001u : 0x1010101u));
      } else {
        at[w] = bit_cast<Word<T>>(x);
      }
    }
  }
  BARAQUANT_HD void set(int i, T x) {
    if constexpr (kPerWord<T> > 1) {
      const int shift = i % kPerWord<T> * kBits;
      const uint32_t word = static_cast<uint32_t>(at[i / kPerWord<T>]);
      at[i / kPerWord<T>] = static_cast<int32_t>((word & ~(kMask << shift)) | bits_of(x) << shift);
    } else {
      at[i] = bit_cast<Word<T>>(x);
    }
  }
  BARAQUANT_HD T get(int i) const {
    if constexpr (kPerWord<T> > 1) {
      const uint32_t word = static_cast<uint32_t>(at[i / kPerWord<T>]);
      return bit_cast<T>(static_cast<Bits>(word >> (i % kPerWord<T> * kBits)));
    } else {
      return bit_cast<T>(at[i]);
    }
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;  // of T, if it is that small
  static constexpr int kBits = 8 * sizeof(Bits);
  static constexpr uint32_t kMask = (1u << kBits) - 1u;
  BARAQUANT_HD static uint32_t bits_of(T x) { return bit_cast<Bits>(x); }
};

}  // namespace baraquant
