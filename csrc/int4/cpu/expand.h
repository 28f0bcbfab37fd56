// SPDX-License-Identifier: BSD-3-Clause
// Turns parts of packed rows into int8 on the CPU, without torch. The product (int8_mm/cpu) calls it
// for the rows that it is about to multiply.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "int4/math.h"
#include "machine/cpu_isa.h"

namespace baraquant::int4 {

// Expands `count` elements of a group; the first is in the low bits of from[0].
inline void expand_group(const uint8_t* from, int64_t count, Group group, int8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = expand(i % 2 == 0 ? from[i / 2] & 15 : from[i / 2] >> 4, group);
  }
}

#if defined(__x86_64__)
// The 16 possible results of a group.
BARAQUANT_AVX2 inline __m128i table_of(Group group) {
  const __m256i u = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i from_zero = _mm256_sub_epi16(u, _mm256_set1_epi16(group.zero_point));
  const __m256i product = _mm256_mullo_epi16(from_zero, _mm256_set1_epi16(group.factor));
  const __m256i low_bytes = _mm256_and_si256(product, _mm256_set1_epi16(255));
  return _mm_packus_epi16(_mm256_castsi256_si128(low_bytes),
                          _mm256_extracti128_si256(low_bytes, 1));
}

// The same for 64 or 32 elements at a time: a byte shuffle looks the results up.
BARAQUANT_AVX2 inline void expand_group_avx2(const uint8_t* from, int64_t count, Group group,
                                             int8_t* to) {
  const __m128i table = table_of(group), nibble = _mm_set1_epi8(15);
  const __m256i tables = _mm256_broadcastsi128_si256(table), nibbles = _mm256_set1_epi8(15);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const auto* const bytes = reinterpret_cast<const __m256i*>(from + i / 2);
    // The unpacking below works within halves: bring the bytes of each result into one.
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_loadu_si256(bytes), 0b11011000);
    const __m256i even = _mm256_shuffle_epi8(tables, _mm256_and_si256(mixed, nibbles));
    const __m256i odd =
        _mm256_shuffle_epi8(tables, _mm256_and_si256(_mm256_srli_epi16(mixed, 4), nibbles));
    auto* const target = reinterpret_cast<__m256i*>(to + i);
    _mm256_storeu_si256(target, _mm256_unpacklo_epi8(even, odd));
    _mm256_storeu_si256(target + 1, _mm256_unpackhi_epi8(even, odd));
  }
  for (; i + 32 <= count; i += 32) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i / 2));
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    auto* const target = reinterpret_cast<__m128i*>(to + i);
    _mm_storeu_si128(target, _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128(target + 1, _mm_unpackhi_epi8(even, odd));
  }
  if (i < count) expand_group(from + i / 2, count - i, group, to + i);
}
#endif

// The elements begin .. end - 1 of a row; begin is even.
inline void expand_row(CpuIsa isa, const Packed& packed, int64_t row, int64_t begin, int64_t end,
                       int8_t* to) {
  auto* group_function = &expand_group;
#if defined(__x86_64__)
  if (isa != CpuIsa::kDefault) group_function = &expand_group_avx2;
#endif
  const uint8_t* const from = packed.row(row);
  int64_t g = begin / packed.group_size, stop = g * packed.group_size;
  for (int64_t k = begin; k < end; k = stop, ++g) {
    stop = std::min(end, stop + packed.group_size);
    group_function(from + k / 2, stop - k, packed.group(row, g), to + (k - begin));
  }
}

}  // namespace baraquant::int4
