// SPDX-License-Identifier: BSD-3-Clause
// The PTX that the generic kernel consists of: loads of matrices from shared memory, and
// mma.sync.m16n8k32. A row of a tile in shared memory consists of 16-byte chunks, which are permuted
// within the row so that eight rows of one column of chunks lie in different banks.
#pragma once

#include <cstdint>

#include "machine/async_copy.cuh"
#include "machine/mma.cuh"
#include "machine/shared_memory.cuh"

namespace baraquant::int8_mm {

// Returns the place of a chunk, in bytes, in a tile whose rows have `chunks` of them.
template <int chunks>
__device__ __forceinline__ int swizzled(int row, int column) {
  static_assert(chunks == 4 || chunks % 8 == 0);
  // Two rows of four chunks fill all banks.
  const int permutation = chunks == 4 ? (row >> 1) & 3 : row & 7;
  return (row * chunks + (column ^ permutation)) * 16;
}

__device__ __forceinline__ void load_matrices(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d,
                                              const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(shared_address(row))
               : "memory");
}

// Loads 16 rows x 32 bytes of the input, from the given row and column of chunks on.
template <int chunks>
__device__ __forceinline__ void load_input_fragment(uint32_t (&a)[4], const uint8_t* tile, int row,
                                                    int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(a[0], a[1], a[2], a[3],
                tile + swizzled<chunks>(row + lane % 16, column + lane / 16));
}

// Loads two fragments of 8 rows x 32 bytes of the weight.
template <int chunks>
__device__ __forceinline__ void load_weight_fragments(uint32_t (&b)[2], uint32_t (&next)[2],
                                                      const uint8_t* tile, int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load_matrices(b[0], b[1], next[0], next[1],
                tile + swizzled<chunks>(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2));
}

// sums += a * b, wrapping.
template <bool is_unsigned>
__device__ __forceinline__ void multiply_fragments(int (&sums)[4], const uint32_t (&a)[4],
                                                   const uint32_t (&b)[2]) {
  if constexpr (is_unsigned) {
    BARAQUANT_MMA("m16n8k32.row.col.s32.u8.s8.s32", "+r", sums, a, b[0], b[1]);
  } else {
    BARAQUANT_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r", sums, a, b[0], b[1]);
  }
}

}  // namespace baraquant::int8_mm
