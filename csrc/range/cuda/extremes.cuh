// SPDX-License-Identifier: BSD-3-Clause
// Merges ranges (order_keys.h) over the threads of a warp, a block and a cluster of blocks. The
// result is exact, so its bits do not depend on the order. NB: every thread of the warp, block or
// cluster must call these functions, also those that have nothing to add.
#pragma once

#include "machine/pack.cuh"
#include "machine/shared_memory.cuh"
#include "range/mapping.h"
#include "range/order_keys.h"

namespace baraquant::range {

constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T, int size>
__device__ __forceinline__ void add_words(WordExtremes<T>& range, const Words<T, size>& words,
                                          bool two_sided) {
#pragma unroll
  for (int w = 0; w < words.kCount; ++w) range.add(words.at[w], two_sided);
}

// Merges over the threads of a warp whose numbers differ only in the bits first_bit .. end_bit - 1.
// Range is Extremes or WordExtremes. Every thread gets the result.
template <typename Range>
__device__ __forceinline__ Range merge_lanes(Range mine, int first_bit, int end_bit,
                                             bool two_sided) {
  for (int bit = first_bit; bit < end_bit; ++bit) {
    Range other = mine;
    other.highest = __shfl_xor_sync(kAllLanes, mine.highest, 1 << bit);
    if (two_sided) other.lowest = __shfl_xor_sync(kAllLanes, mine.lowest, 1 << bit);
    mine.merge(other, two_sided);
  }
  return mine;
}

template <typename T>
__device__ __forceinline__ Extremes<T> merge_warp(Extremes<T> mine, bool two_sided) {
  if constexpr (sizeof(Word<T>) == 4) {
    mine.highest = __reduce_max_sync(kAllLanes, mine.highest);
    if (two_sided) mine.lowest = __reduce_min_sync(kAllLanes, mine.lowest);
    return mine;
  } else {
    return merge_lanes(mine, 0, kWarpLog2, two_sided);
  }
}

// Merges the ranges of a block's warps. Every thread gets the result. NB: only once in a kernel; a
// second call would overwrite what slower warps still read.
template <typename T>
__device__ __forceinline__ Extremes<T> merge_block(Extremes<T> of_warp, bool two_sided) {
  __shared__ Extremes<T> of_warps[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / 32;
  if (lane == 0) of_warps[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return merge_warp(lane < warps ? of_warps[lane] : Extremes<T>::of_nothing(), two_sided);
}

// The shared memory in which a block receives the ranges of all blocks of its cluster, once.
template <typename T>
struct ClusterMail {
  uint64_t barrier;
  alignas(16) Extremes<T> of_blocks[1 << kMaxBlocksLog2];
};

// Waits for a phase of an mbarrier of this block, and so for what other blocks wrote before it.
__device__ __forceinline__ void wait_for_phase(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#endif
}

// Sends a range to the shared memory of block `rank` of the cluster, whose mbarrier counts the
// bytes. NB: not with a barrier of the cluster, whose release would wait for all memory accesses of
// a block.
template <typename T>
__device__ __forceinline__ void send_to_block(const Extremes<T>& range, uint32_t place,
                                              uint32_t barrier, int rank) {
#if __CUDA_ARCH__ >= 900
  uint32_t there, barrier_there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier_there) : "r"(barrier), "r"(rank));
  const auto send = [&](uint32_t to, int64_t word) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
        "l"(word), "r"(barrier_there)
        : "memory");
  };
  if constexpr (sizeof(range) == 8) {
    send(there, bit_cast<int64_t>(range));
  } else {
    send(there, range.lowest);
    send(there + 8, range.highest);
  }
#endif
}

// Must be called before merge_cluster, and as early as possible: merge_cluster waits until every
// block of the cluster has called this, which shows that the block runs and has set up its `mail`.
template <typename T>
__device__ __forceinline__ void announce_to_cluster(ClusterMail<T>& mail, int blocks) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(&mail.barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(blocks * static_cast<int>(sizeof(Extremes<T>)))
                 : "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// Merges the ranges of a cluster's blocks: every block sends its own to all. Every thread gets the
// result. Afterwards no block receives anything, so each may end at any time. NB: only once in a
// kernel, and never below sm_90.
template <typename T>
__device__ __forceinline__ Extremes<T> merge_cluster(Extremes<T> of_block, ClusterMail<T>& mail,
                                                     int blocks, bool two_sided) {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // for announce_to_cluster
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t barrier = shared_address(&mail.barrier);
  if (thread < blocks) {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    send_to_block(of_block, shared_address(&mail.of_blocks[rank]), barrier, thread);
  }
  wait_for_phase(barrier, 0);
  Extremes<T> all = mail.of_blocks[0];
  for (int b = 1; b < blocks; ++b) all.merge(mail.of_blocks[b], two_sided);
  return all;
#else
  return of_block;
#endif
}

}  // namespace baraquant::range
