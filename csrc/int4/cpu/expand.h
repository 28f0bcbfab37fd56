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

// The parts of groups that the elements begin .. end - 1 of a row consist of; begin is even.
class Parts {
 public:
  Parts(const Packed& packed, int64_t row, int64_t begin, int64_t end)
      : packed_(packed),
        end_(end),
        group_(row * packed.groups() + begin / packed.group_size),
        k_(begin),
        stop_(std::min(end, (begin / packed.group_size + 1) * packed.group_size)) {}

  bool is_done() const { return k_ >= end_; }
  void next() {
    k_ = stop_;
    ++group_;
    stop_ = std::min(end_, stop_ + packed_.group_size);
  }
  int64_t begin() const { return k_; }
  int64_t count() const { return stop_ - k_; }
  Group group() const { return packed_.group(group_); }

 private:
  const Packed packed_;
  int64_t end_, group_, k_, stop_;
};

#if defined(__x86_64__)
// The same for a row, 64 or 32 elements at a time: a byte shuffle looks their results up.
BARAQUANT_AVX2 inline void expand_row_avx2(const Packed& packed, int64_t row, int64_t begin,
                                           int64_t end, int8_t* to) {
  const __m256i u = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i bytes = _mm256_set1_epi16(255), nibbles = _mm256_set1_epi8(15);
  const __m128i nibble = _mm_set1_epi8(15);
  for (Parts part(packed, row, begin, end); !part.is_done(); part.next()) {
    const Group group = part.group();
    // The 16 possible results.
    const __m256i product = _mm256_mullo_epi16(
        _mm256_sub_epi16(u, _mm256_set1_epi16(group.zero_point)), _mm256_set1_epi16(group.factor));
    const __m256i low_bytes = _mm256_and_si256(product, bytes);
    const __m128i table =
        _mm_packus_epi16(_mm256_castsi256_si128(low_bytes), _mm256_extracti128_si256(low_bytes, 1));
    const __m256i tables = _mm256_broadcastsi128_si256(table);
    const uint8_t* const from = packed.row(row) + part.begin() / 2;
    int8_t* const target = to + (part.begin() - begin);
    const int64_t count = part.count();
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) {
      const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i / 2));
      // The unpacking works within halves: bring the bytes of each result into one.
      const __m256i mixed = _mm256_permute4x64_epi64(loaded, 0b11011000);
      const __m256i even = _mm256_shuffle_epi8(tables, _mm256_and_si256(mixed, nibbles));
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(mixed, 4), nibbles);
      const __m256i odd = _mm256_shuffle_epi8(tables, high);
      auto* const out = reinterpret_cast<__m256i*>(target + i);
      _mm256_storeu_si256(out, _mm256_unpacklo_epi8(even, odd));
      _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi8(even, odd));
    }
    for (; i + 32 <= count; i += 32) {
      const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i / 2));
      const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(loaded, nibble));
      const __m128i high = _mm_and_si128(_mm_srli_epi16(loaded, 4), nibble);
      const __m128i odd = _mm_shuffle_epi8(table, high);
      auto* const out = reinterpret_cast<__m128i*>(target + i);
      _mm_storeu_si128(out, _mm_unpacklo_epi8(even, odd));
      _mm_storeu_si128(out + 1, _mm_unpackhi_epi8(even, odd));
    }
    if (i < count) expand_group(from + i / 2, count - i, group, target + i);
  }
}
#endif

// The elements begin .. end - 1 of a row; begin is even.
inline void expand_row(CpuIsa isa, const Packed& packed, int64_t row, int64_t begin, int64_t end,
                       int8_t* to) {
#if defined(__x86_64__)
  if (isa != CpuIsa::kDefault) return expand_row_avx2(packed, row, begin, end, to);
#endif
  for (Parts part(packed, row, begin, end); !part.is_done(); part.next()) {
    expand_group(packed.row(row) + part.begin() / 2, part.count(), part.group(),
                 to + (part.begin() - begin));
  }
}

}  // namespace baraquant::int4
