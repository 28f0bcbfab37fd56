// SPDX-License-Identifier: BSD-3-Clause
// What the kernels that read the weight once consist of: rows are read 16 bytes at a time, and one
// instruction (dp4a) adds up four products.
#pragma once

#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/unaligned.cuh"
#include "machine/pack.cuh"

namespace baraquant::int8_mm {

constexpr int kVectorWarps = 4;  // warps of a block

template <bool is_unsigned>
__device__ __forceinline__ int add_products(uint32_t a, uint32_t w, int sum) {
  int result;
  if constexpr (is_unsigned) {
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(w), "r"(sum));
  } else {
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(w), "r"(sum));
  }
  return result;
}

template <bool is_unsigned>
__device__ __forceinline__ int add_products(const uint4& a, const uint4& w, int sum) {
  sum = add_products<is_unsigned>(a.x, w.x, sum);
  sum = add_products<is_unsigned>(a.y, w.y, sum);
  sum = add_products<is_unsigned>(a.z, w.z, sum);
  return add_products<is_unsigned>(a.w, w.w, sum);
}

// A matrix of rows of k bytes.
template <bool aligned>
struct Matrix {
  const uint8_t* base;
  int64_t rows, k;

  // Returns 16 bytes of a row, with zeros beyond its end.
  __device__ __forceinline__ uint4 chunk(int64_t row, int64_t at) const {
    if constexpr (aligned) {
      return at < k ? *reinterpret_cast<const uint4*>(base + row * k + at) : uint4{};
    } else {
      UnalignedChunk words;
      words.read(base, rows * k, row * k + at, k - at);
      return words.bytes();
    }
  }

  // The same for bytes that are read only once and must not displace others from the L1 cache.
  __device__ __forceinline__ uint4 streamed_chunk(int64_t row, int64_t at) const {
    if constexpr (aligned) {
      uint4 word{};
      // One predicated instruction and no branch, so that many loads are in flight at once.
      asm volatile(
          "{ .reg .pred p; setp.ne.b32 p, %5, 0;\n"
          "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }\n"
          : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
          : "l"(base + row * k + at), "r"(static_cast<int>(at < k)));
      return word;
    } else {
      return chunk(row, at);
    }
  }
};

}  // namespace baraquant::int8_mm
