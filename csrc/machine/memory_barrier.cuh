// SPDX-License-Identifier: BSD-3-Clause
// Barriers in shared memory (mbarrier, from Hopper on), whose phases are 0, 1, 0, ...
#pragma once

#include <cstdint>

#include "machine/shared_memory.cuh"

namespace baraquant {

class MemoryBarrier {
 public:
  // One thread calls this, before a __syncthreads(). A phase ends when so many have arrived.
  __device__ __forceinline__ void init(int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address()), "r"(arrivals)
                 : "memory");
#endif
  }
  __device__ __forceinline__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address()) : "memory");
#endif
  }
  // Arrives; besides, the phase does not end before so many bytes have been copied.
  __device__ __forceinline__ void arrive_and_expect(uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
#endif
  }
  // Waits for the end of a phase of this parity.
  __device__ __forceinline__ void wait(uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
#endif
  }

  __device__ __forceinline__ uint32_t address() const { return shared_address(&state_); }

 private:
  uint64_t state_;
};

}  // namespace baraquant
