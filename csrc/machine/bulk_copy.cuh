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

// Asks for the first bytes of a row of a weight, which has a multiple of 16 and is aligned to 16. They
// go to the cache that all multiprocessors share, which sees each store: so a kernel may ask before it
// waits for a kernel that writes them. One thread calls this. NB: more bytes than memory brings while
// the kernel waits delay the kernel that it waits for.
template <int most>
__device__ __forceinline__ void prefetch_row(const void* row, int64_t bytes) {
  static_assert(most % 16 == 0);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(row),
               "r"(static_cast<uint32_t>(bytes < most ? bytes : most))
               : "memory");
#endif
}

}  // namespace baraquant
