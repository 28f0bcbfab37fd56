// SPDX-License-Identifier: BSD-3-Clause
// Copies from memory to shared memory by the copy engine (cp.async.bulk, from Hopper on), whose end a
// barrier tells.
#pragma once

#include <cstdint>

#include "machine/memory_barrier.cuh"

namespace baraquant {

// Makes barriers known to the copy engine, after MemoryBarrier::init() and before a __syncthreads().
__device__ __forceinline__ void publish_barriers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}

// What other kernels wrote by ordinary stores is visible to copies that begin after this.
__device__ __forceinline__ void publish_to_bulk_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;\n" ::: "memory");
#endif
}

// Copies a multiple of 16 bytes between places that are aligned to 16. One thread calls this.
__device__ __forceinline__ void copy_bulk_async(void* to, const void* from, uint32_t bytes,
                                                const MemoryBarrier& barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(barrier.address())
      : "memory");
#endif
}

}  // namespace baraquant
