// SPDX-License-Identifier: BSD-3-Clause
// Turns parts of packed rows into int8 on the CPU, without torch. The product (int8_mm/cpu) calls it
// for the rows that it is about to multiply.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

#if defined(__x86_64__) || defined(__aarch64__)
// The 16 possible results of every group whose numbers are valid.
struct Tables {
  alignas(16) int8_t results[kLargest + 1][kMaxFactor][kLargest + 1];
};
constexpr Tables make_tables() {
  Tables tables{};
  for (uint8_t z = 0; z <= kLargest; ++z) {
    for (uint8_t f = 1; f <= kMaxFactor; ++f) {
      for (uint8_t u = 0; u <= kLargest; ++u) tables.results[z][f - 1][u] = expand(u, {f, z});
    }
  }
  return tables;
}
inline constexpr Tables kTables = make_tables();

// The results of a group: those of kTables, or `own`, where it writes them.
inline const int8_t* results_of(Group group, int8_t (&own)[kLargest + 1]) {
  if (group.zero_point <= kLargest && group.factor - 1U < kMaxFactor) {
    return kTables.results[group.zero_point][group.factor - 1];
  }
  for (uint32_t u = 0; u <= kLargest; ++u) own[u] = expand(u, group);
  return own;
}
#endif

#if defined(__x86_64__)
BARAQUANT_AVX2 inline __m128i table_of(Group group) {
  alignas(16) int8_t own[kLargest + 1];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(results_of(group, own)));
}

// Expands 32 bytes, of which the halves may have tables of their own: a byte shuffle looks the
// results up.
BARAQUANT_AVX2 inline void expand_64(const uint8_t* from, __m256i tables, int8_t* to) {
  const __m256i nibbles = _mm256_set1_epi8(15);
  const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i even = _mm256_shuffle_epi8(tables, _mm256_and_si256(loaded, nibbles));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(loaded, 4), nibbles);
  const __m256i odd = _mm256_shuffle_epi8(tables, high);
  // The unpacking works within halves.
  const __m256i first = _mm256_unpacklo_epi8(even, odd), second = _mm256_unpackhi_epi8(even, odd);
  auto* const out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(first, second, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(first, second, 0x31));
}

BARAQUANT_AVX2 inline void expand_32(const uint8_t* from, __m128i table, int8_t* to) {
  const __m128i nibbles = _mm_set1_epi8(15);
  const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(loaded, nibbles));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(loaded, 4), nibbles);
  const __m128i odd = _mm_shuffle_epi8(table, high);
  auto* const out = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(out, _mm_unpacklo_epi8(even, odd));
  _mm_storeu_si128(out + 1, _mm_unpackhi_epi8(even, odd));
}

// As expand_group(), 64 or 32 elements at a time.
BARAQUANT_AVX2 inline void expand_group_avx2(const uint8_t* from, int64_t count, Group group,
                                             int8_t* to) {
  const __m128i table = table_of(group);
  const __m256i tables = _mm256_broadcastsi128_si256(table);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) expand_64(from + i / 2, tables, to + i);
  for (; i + 32 <= count; i += 32) expand_32(from + i / 2, table, to + i);
  if (i < count) expand_group(from + i / 2, count - i, group, to + i);
}

BARAQUANT_AVX2 inline void expand_row_avx2(const Packed& packed, int64_t row, int64_t begin,
                                           int64_t end, int8_t* to) {
  const uint8_t* const values = packed.row(row);
  if (packed.group_size == 32 && begin % 32 == 0) {  // two groups at a time
    int64_t group = row * packed.groups() + begin / 32;
    for (; begin + 64 <= end; begin += 64, group += 2, to += 64) {
      const __m128i first = table_of(packed.group(group));
      const __m128i second = table_of(packed.group(group + 1));
      expand_64(values + begin / 2, _mm256_set_m128i(second, first), to);
    }
  }
  for (Parts part(packed, row, begin, end); !part.is_done(); part.next()) {
    expand_group_avx2(values + part.begin() / 2, part.count(), part.group(),
                      to + (part.begin() - begin));
  }
}
#elif defined(__aarch64__)
// As expand_group(), 32 elements at a time: a lookup by bytes, and a store that interleaves two
// vectors.
inline void expand_group_neon(const uint8_t* from, int64_t count, Group group, int8_t* to) {
  int8_t own[kLargest + 1];
  const int8x16_t table = vld1q_s8(results_of(group, own));
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const uint8x16_t bytes = vld1q_u8(from + i / 2);
    const int8x16_t even = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
    const int8x16_t odd = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
    vst2q_s8(to + i, int8x16x2_t{{even, odd}});
  }
  if (i < count) expand_group(from + i / 2, count - i, group, to + i);
}
#endif

// As expand_group(), by the instructions that every machine of an architecture has.
inline void expand_part(const uint8_t* from, int64_t count, Group group, int8_t* to) {
#if defined(__aarch64__)
  expand_group_neon(from, count, group, to);
#else
  expand_group(from, count, group, to);
#endif
}

// The numbers of a whole row, less kMiddle.
inline void unpack(CpuIsa isa, const uint8_t* row, int64_t columns, int8_t* to) {
#if defined(__x86_64__)
  if (isa != CpuIsa::kDefault) return expand_group_avx2(row, columns, {1, kMiddle}, to);
#endif
  expand_part(row, columns, {1, kMiddle}, to);
}

// The elements begin .. end - 1 of a row; begin is even.
inline void expand_row(CpuIsa isa, const Packed& packed, int64_t row, int64_t begin, int64_t end,
                       int8_t* to) {
#if defined(__x86_64__)
  if (isa != CpuIsa::kDefault) return expand_row_avx2(packed, row, begin, end, to);
#endif
  for (Parts part(packed, row, begin, end); !part.is_done(); part.next()) {
    expand_part(packed.row(row) + part.begin() / 2, part.count(), part.group(),
                to + (part.begin() - begin));
  }
}

}  // namespace baraquant::int4
