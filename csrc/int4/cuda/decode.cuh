// SPDX-License-Identifier: BSD-3-Clause
// From numbers of four bits to int8 in registers: expand() of int4/math.h, four or eight at once.
#pragma once

#include <cstdint>

#include "int4/math.h"

namespace baraquant::int4 {

// What decodes the numbers of a group.
struct Decoder {
  uint32_t factor, negative;  // negative: -zero_point * factor

  __device__ __forceinline__ Decoder(uint32_t f, uint32_t zero_point)
      : factor(f), negative(0u - zero_point * f) {}

  // Whether all of 0 .. 15 stand for numbers of int8.
  __device__ __forceinline__ bool fits() const {
    return negative + 128u <= 128u && kLargest * factor + negative + 128u <= 255u;
  }

  // Decodes the number (0 .. 15) in each byte of a word.
  template <bool fits>
  __device__ __forceinline__ uint32_t decode(uint32_t numbers) const {
    // Every byte of the sum is in 0 .. 255, so none carries into the next.
    if constexpr (fits) {
      return (numbers * factor + (negative + 128u) * 0x01010101u) ^ 0x80808080u;
    } else {  // the same modulo 256: in halves of 16 bits, whose high bytes are left away
      const uint32_t offset = (negative & 255u) * 0x00010001u;
      const uint32_t even = (numbers & 0x000f000fu) * factor + offset;
      const uint32_t odd = (numbers >> 8 & 0x000f000fu) * factor + offset;
      return __byte_perm(even, odd, 0x6240);
    }
  }

  // Decodes the eight numbers of a word: those of the even columns, and those of the odd ones.
  template <bool fits>
  __device__ __forceinline__ uint2 decode_halves(uint32_t word) const {
    return {decode<fits>(word & 0x0f0f0f0fu), decode<fits>(word >> 4 & 0x0f0f0f0fu)};
  }

  // The same in the order of the columns.
  template <bool fits>
  __device__ __forceinline__ uint2 decode_word(uint32_t word) const {
    const uint2 halves = decode_halves<fits>(word);
    return {__byte_perm(halves.x, halves.y, 0x5140), __byte_perm(halves.x, halves.y, 0x7362)};
  }
};

}  // namespace baraquant::int4
