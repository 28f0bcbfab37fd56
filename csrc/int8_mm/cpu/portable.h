// SPDX-License-Identifier: BSD-3-Clause
// For any machine: 16-bit operands in plain loops along the depth, which compilers turn into the
// multiply-adds of the machine. A panel keeps the rows of the weight one after another.
#pragma once

#include <algorithm>

#include "int8_mm/cpu/tile.h"

namespace baraquant::int8_mm::portable {

constexpr int kRows = 8, kColumns = 4;

inline void pack_weight(const int8_t* weight, int64_t stride, int64_t count, int64_t depth,
                        uint8_t* panel, int32_t* weight_sums) {
  const int64_t length = (depth + 1) / 2 * 2;
  for (int64_t j = 0; j < kColumns; ++j) {
    int16_t* const to = reinterpret_cast<int16_t*>(panel) + j * length;
    widen(weight + std::min(j, count - 1) * stride, depth, length, to);
    if (!weight_sums) continue;
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += to[k];
    weight_sums[j] += sum;
  }
}

template <int kCount>
void tile(const PackedRows& input, const uint8_t* panel, int64_t words, const Sums& sums, bool add,
          const Ahead&) {
  const int64_t length = 2 * words;
  const int16_t* __restrict const w0 = reinterpret_cast<const int16_t*>(panel);
  const int16_t* __restrict const w1 = w0 + length;
  const int16_t* __restrict const w2 = w1 + length;
  const int16_t* __restrict const w3 = w2 + length;
  for (int i = 0; i < kCount; ++i) {
    const int16_t* __restrict const a =
        reinterpret_cast<const int16_t*>(input.data + i * input.stride);
    int32_t* const out = sums.data + i * sums.stride;
    int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int64_t k = 0; k < length; ++k) {
      s0 += a[k] * w0[k];
      s1 += a[k] * w1[k];
      s2 += a[k] * w2[k];
      s3 += a[k] * w3[k];
    }
    const int32_t found[kColumns] = {s0, s1, s2, s3};
    for (int j = 0; j < kColumns; ++j) out[j] = (add ? out[j] : 0) + found[j];
  }
}

inline constexpr auto kTiles = for_each_count<kRows>([]<int rows> { return &tile<rows>; });
inline constexpr CpuKernel kKernel{"int8_mm_portable", kColumns,     2,      {},
                                   &pack_wide,         &pack_weight, kTiles, 0};

}  // namespace baraquant::int8_mm::portable
