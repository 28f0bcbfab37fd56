// SPDX-License-Identifier: BSD-3-Clause
// A barrier of some warps of a block. __syncthreads() is for all of them.
#pragma once

namespace baraquant {

class NamedBarrier {
 public:
  // `id`: from 1 to 15; 0 is that of __syncthreads(). `threads`: those of whole warps.
  __device__ __forceinline__ NamedBarrier(int id, int threads) : id_(id), threads_(threads) {}

  __device__ __forceinline__ void wait() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;\n" ::"r"(id_), "r"(threads_) : "memory");
  }

 private:
  int id_, threads_;
};

}  // namespace baraquant
