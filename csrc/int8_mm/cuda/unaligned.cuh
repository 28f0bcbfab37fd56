// SPDX-License-Identifier: BSD-3-Clause
// Loads 16 bytes of a matrix row from any address: the two aligned 16-byte words around them are
// read and shifted. These words may contain bytes of neighbouring rows, but bytes outside the
// matrix are never read.
#pragma once

#include <cstdint>

#include "machine/pack.cuh"

namespace baraquant::int8_mm {

constexpr int kChunk = 16;

// Whether each row of a matrix of rows of k bytes begins at a multiple of a chunk.
inline bool has_aligned_rows(const void* matrix, int64_t k) {
  return k % kChunk == 0 && is_aligned(matrix, kChunk);
}

// Reads the 16 bytes from `at` on, with zeros in place of those outside begin .. end - 1.
__device__ __forceinline__ uint4 read_word(const uint8_t* at, const uint8_t* begin,
                                           const uint8_t* end) {
  if (at >= begin && end - at >= kChunk) return *reinterpret_cast<const uint4*>(at);
  uint4 word{};
#pragma unroll 1
  for (int i = 0; i < kChunk; i += 4) {
    uint32_t bytes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint8_t* byte = at + i + j;
      if (byte >= begin && byte < end) bytes |= static_cast<uint32_t>(*byte) << (8 * j);
    }
    word = {word.y, word.z, word.w, bytes};
  }
  return word;
}

struct UnalignedChunk {
  uint4 low, high;
  int shift, count;  // bytes

  // Reads the bytes from base[offset] on; the first `left` of them belong to the row. `base` has
  // `size` bytes.
  __device__ __forceinline__ void read(const uint8_t* base, int64_t size, int64_t offset,
                                       int64_t left) {
    const uint8_t* at = base + offset;
    shift = static_cast<int>(reinterpret_cast<uintptr_t>(at) % kChunk);
    count = left >= kChunk ? kChunk : static_cast<int>(left);
    low = high = {};
    if (count > 0) low = read_word(at - shift, base, base + size);
    if (shift + count > kChunk) high = read_word(at - shift + kChunk, base, base + size);
  }

  // Returns these bytes, with zeros beyond the end of the row.
  __device__ __forceinline__ uint4 bytes() const {
    uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) {
#pragma unroll
      for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
    }
    if (shift & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = __funnelshift_r(w[i], w[i + 1], shift % 4 * 8);
      const int kept = count - 4 * i;
      if (kept < 4) w[i] = kept <= 0 ? 0 : w[i] & ((1u << (8 * kept)) - 1);
    }
    return {w[0], w[1], w[2], w[3]};
  }
};

}  // namespace baraquant::int8_mm
