// SPDX-License-Identifier: BSD-3-Clause
// Clusters of blocks along z, from Hopper on, which read one another's shared memory.
#pragma once

#include <cstdint>

#include "machine/float_types.h"
#include "machine/shared_memory.cuh"

namespace baraquant {

// All threads of the cluster that have not ended come here before one goes on; they see what the
// others wrote.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
#endif
}

// No block of the cluster ends before all have come here: they read one another's shared memory.
__device__ __forceinline__ void end_with_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;\n" ::
          : "memory");
#endif
}

// Reads 16 bytes that the same pointer means in another block of the cluster.
template <typename T>
__device__ __forceinline__ void load_of_block(const T* pointer, unsigned block, T (&result)[4]) {
  static_assert(sizeof(T) == 4);
  uint4 words = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
               : "=r"(there)
               : "r"(shared_address(pointer)), "r"(block));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(there)
               : "memory");
#endif
#pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = bit_cast<T>(word_of(words, i));
}

}  // namespace baraquant
