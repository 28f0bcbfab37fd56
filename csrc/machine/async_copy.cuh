// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous copies of 16 bytes from the device's memory to shared memory (cp.async).
#pragma once

#include "machine/shared_memory.cuh"

namespace baraquant {

// Copies 16 bytes; if not `inside`, it reads nothing and writes zeros.
__device__ __forceinline__ void copy_chunk_async(uint32_t to_address, const void* from,
                                                 bool inside) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to_address), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#endif
}
__device__ __forceinline__ void copy_chunk_async(void* to, const void* from, bool inside) {
  copy_chunk_async(shared_address(to), from, inside);
}

__device__ __forceinline__ void commit_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's groups of copies are in flight.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
#endif
}

}  // namespace baraquant
