// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous copies from the device's memory to shared memory (cp.async). A GPU before Ampere,
// which has none, copies at once.
#pragma once

#include "machine/packed_registers.h"
#include "machine/shared_memory.cuh"

namespace baraquant {

// Copies 16 bytes; if not `inside`, it reads nothing and writes zeros.
__device__ __forceinline__ void copy_chunk_async(uint32_t to_address, const void* from,
                                                 bool inside) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to_address), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#else
  const ::int4 x = inside ? *static_cast<const ::int4*>(from) : ::int4{0, 0, 0, 0};
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to_address), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
#endif
}
__device__ __forceinline__ void copy_chunk_async(void* to, const void* from, bool inside) {
  copy_chunk_async(shared_address(to), from, inside);
}

// Copies a pack of 8 bytes, or of 16 and more, which lies at a multiple of its size (of 16 bytes if
// it is larger) in both memories.
template <typename T, int size>
__device__ __forceinline__ void copy_words_async(Words<T, size>& to, const T* from) {
  constexpr int kBytes = sizeof(Words<T, size>);
  if constexpr (kBytes == 8) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(shared_address(&to)), "l"(from)
                 : "memory");
#else
    to = *reinterpret_cast<const Words<T, size>*>(from);
#endif
  } else {
    static_assert(kBytes % 16 == 0);
#pragma unroll
    for (int at = 0; at < kBytes; at += 16) {
      copy_chunk_async(reinterpret_cast<char*>(&to) + at, reinterpret_cast<const char*>(from) + at,
                       true);
    }
  }
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
