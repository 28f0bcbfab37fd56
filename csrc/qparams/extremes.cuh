// SPDX-License-Identifier: BSD-3-Clause
// Ranges (words.h) merged over the threads of a warp, a block and a cluster of blocks. The result
// is exact, so its bits depend on no order. NB: every thread of the warp, block or cluster must
// come here, also those with nothing to add.
#pragma once

#include <cooperative_groups.h>

#include "qparams/mapping.h"
#include "qparams/words.h"

namespace baraquant::qparams {

constexpr unsigned kAllLanes = 0xffffffffu;

// Neighbours from `begin` on, all of them there and at a multiple of their size (of 16 bytes).
template <typename T, int size>
__device__ __forceinline__ void load_words(Words<T, size>& words, const T* data, int64_t begin) {
  words = *reinterpret_cast<const Words<T, size>*>(data + begin);
}

// `count` neighbours, at least one, in a place of any kind; the rest repeats the first of them,
// which changes no range.
template <typename T, int size>
__device__ __forceinline__ void load_some_words(Words<T, size>& words, const T* data, int64_t begin,
                                                int count) {
  words.fill(data[begin]);
#pragma unroll
  for (int i = 1; i < size; ++i) {
    if (i < count) words.set(i, data[begin + i]);
  }
}

template <typename T, int size>
__device__ __forceinline__ void add_words(WordExtremes<T>& range, const Words<T, size>& words,
                                          bool two_sided) {
#pragma unroll
  for (int w = 0; w < words.kCount; ++w) range.add(words.at[w], two_sided);
}

// Over the lanes of a warp whose numbers differ in the bits from first_bit to end_bit - 1. Range is
// Extremes or WordExtremes. Every lane gets the result.
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

// Over the warps of a block, from the range of each. Every thread gets the result. NB: once in a
// kernel, as a second call would overwrite what slower warps still read.
template <typename T>
__device__ __forceinline__ Extremes<T> merge_block(Extremes<T> of_warp, bool two_sided) {
  __shared__ Extremes<T> of_warps[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / 32;
  if (lane == 0) of_warps[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return merge_warp(lane < warps ? of_warps[lane] : Extremes<T>::of_nothing(), two_sided);
}

// To be called before merge_cluster, as early as can be: that one waits until every block of the
// cluster has called it, and so runs and has its shared memory. It orders no memory.
__device__ __forceinline__ void announce_to_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;");
#endif
}

// Over the blocks of a cluster, from the range of each: every block writes its own into the shared
// memory of all. Every thread gets the result. After it no block touches another's memory, so that
// each may end when it likes. NB: once in a kernel; never called below sm_90.
template <typename T>
__device__ __forceinline__ Extremes<T> merge_cluster(Extremes<T> of_block, int blocks,
                                                     bool two_sided) {
#if __CUDA_ARCH__ >= 900
  __shared__ Extremes<T> of_blocks[1 << kMostBlocksLog2];
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_wait();  // of announce_to_cluster
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < blocks) {
    cluster.map_shared_rank(of_blocks, thread)[cluster.block_rank()] = of_block;
  }
  cluster.sync();
  Extremes<T> all = of_blocks[0];
  for (int b = 1; b < blocks; ++b) all.merge(of_blocks[b], two_sided);
  return all;
#else
  return of_block;
#endif
}

}  // namespace baraquant::qparams
