// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of the gradient of the scale have in common: their arguments, packs that are
// copied ahead, the shares of a pack, and the sum over a team in the order of Note [Order of the
// sums] in segments.h.
#pragma once

#include <cstdint>

#include "elementwise/elementwise_ops.h"
#include "elementwise/packed_math.h"
#include "elementwise/qparams.h"
#include "granularity/segments.h"
#include "machine/async_copy.cuh"
#include "machine/pack.cuh"

namespace baraquant::affine {

// The sums of the slices: [segments, slices]. With a single slice the result is written at once.
struct PartialSums {
  double* scale;
  double* zero_point;
};

template <typename T>
struct GradientParams {
  using C = ComputeType<T>;
  QparamsGradientParams<T> args;
  Qparams<C> q;
  Segments segments;
  Divisor slices;  // segments.slices
  PartialSums partial;
  int team;         // threads of a team, for segments that lie in runs
  bool contiguous;  // for runs: the segments have one length and lie one after the other
  bool aligned;     // every pack lies within a run and is aligned for one access
  bool fast_range;  // FastestGrid accepts the range
};

// How many blocks must fit on a multiprocessor, which limits a thread to 80, 128 or 255 registers.
// The sums alone take 16 or 32.
template <typename T, bool zero_point_gradient>
constexpr int kGradientBlocks = 3 - zero_point_gradient - (sizeof(T) == 8);

// What a thread adds up: its lanes of the sums.
template <int count, bool zero_point_gradient>
struct ThreadSums {
  double scale[count] = {};
  double zero_point[zero_point_gradient ? count : 1] = {};
};

template <typename T, int size>
struct GradientPack {
  Words<T, size> dy, x;

  // Row r of several that make up a pack.
  template <int part>
  __device__ __forceinline__ void set_row(int r, const Words<T, part>& row_dy,
                                          const Words<T, part>& row_x) {
#pragma unroll
    for (int w = 0; w < row_dy.kCount; ++w) {
      dy.at[r * row_dy.kCount + w] = row_dy.at[w];
      x.at[r * row_x.kCount + w] = row_x.at[w];
    }
  }
};

// The grid of a segment, and whether it accepts the segment's scale.
template <typename C>
struct SegmentGrid {
  FastestPlainGrid<C> grid;
  bool fast;

  template <typename T>
  __device__ __forceinline__ SegmentGrid(const GradientParams<T>& p, int64_t segment) {
    const C scale = p.q.scale_at(segment), zero_point = p.q.zero_point_at(segment);
    grid = FastestPlainGrid<C>(scale, zero_point, p.q.range);
    fast = p.fast_range && FastestPlainGrid<C>::accepts(scale, zero_point);
  }
  __device__ __forceinline__ const FastestPlainGrid<C>& operator()(int) const { return grid; }
};

// The packs that a thread computes next, on their way to places of its own in shared memory, so
// that no thread waits for another. The sums take so many registers that a multiprocessor holds few
// threads, and what these could load into registers would not keep the memory busy. A step is
// `rows` packs of dy and as many of x, and kSteps of them are on their way.
template <typename T, int size, int rows, int threads>
class PacksAhead {
 public:
  static constexpr int kSteps = 8 / sizeof(T);
  struct Memory {
    Words<T, size> dy[kSteps][rows][threads], x[kSteps][rows][threads];
  };

  __device__ __forceinline__ explicit PacksAhead(Memory& memory) : memory_(memory) {}

  // Waits for the oldest step and returns the first packs of it as one.
  template <int count = rows>
  __device__ __forceinline__ GradientPack<T, count * size> take() const {
    wait_for_copies<kSteps - 1>();
    GradientPack<T, count * size> all;
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const Words<T, size> dy = memory_.dy[step_][r][threadIdx.x];
      const Words<T, size> x = memory_.x[step_][r][threadIdx.x];
      all.set_row(r, dy, x);
    }
    return all;
  }
  // Starts to copy a pack of a new step, to where the oldest one was. After all of them: done().
  __device__ __forceinline__ void copy(int row, const T* dy, const T* x) {
    copy_words_async(memory_.dy[step_][row][threadIdx.x], dy);
    copy_words_async(memory_.x[step_][row][threadIdx.x], x);
  }
  __device__ __forceinline__ void done() {
    commit_copies();
    step_ = (step_ + 1) % kSteps;
  }

 private:
  Memory& memory_;
  unsigned step_ = 0;
};

// Computes a pack's dx and adds the shares of its first `count` elements to the lanes, each element
// to the next one. grid_at(lane) is the PlainGrid of a lane's elements; `fast` says whether these
// accept their scales.
template <typename T, int size, int lane_count, bool zero_point_gradient, typename GridAt>
__device__ __forceinline__ Words<T, size> add_pack(
    const GradientPack<T, size>& pack, int count, bool fast, const GridAt& grid_at,
    QuantRange<ComputeType<T>> range, ThreadSums<lane_count, zero_point_gradient>& lanes) {
  using C = ComputeType<T>;
  C dx[size];
  const auto add = [&](int i, const auto& grid) {
    const auto share = QparamsGradient<T>::apply(pack.dy.get(i), pack.x.get(i), dx[i], grid);
    if (i >= count) return;
    lanes.scale[i % lane_count] += static_cast<double>(share.scale);
    if constexpr (zero_point_gradient) {
      lanes.zero_point[i % lane_count] += static_cast<double>(share.zero_point);
    }
  };
  if (fast && are_plain(pack.x)) {
#pragma unroll
    for (int i = 0; i < size; ++i) add(i, grid_at(i % lane_count));
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const auto& grid = grid_at(i % lane_count);
      add(i, Grid<C>(grid.scale(), grid.zero_point(), range));
    }
  }
  return words_of<T>(dx);
}

// Writes the sum of a slice; `at` is the segment * slices + the number of the slice within it.
template <typename C>
__device__ __forceinline__ void write_sum(double sum, int64_t at, int64_t slices, double* partial,
                                          C* result) {
  if (slices == 1) {
    result[at] = static_cast<C>(sum);
  } else {
    partial[at] = sum;
  }
}

// Adds up the lanes of a team in pairs: first those within a thread, then those of neighbouring
// threads. A team is a power of two of threads up to a warp, or the block. NB: all threads of the
// block must call it.
__device__ __forceinline__ double sum_team(const double (&lanes)[kPackLanes], int team) {
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
               ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  const int within_warp = min(team, 32);
  for (int width = 1; width < within_warp; width *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, width);
  }
  if (team <= 32) return sum;
  __shared__ double warps[kMaxTeam / 32];
  static_assert(kMaxTeam / 32 == 8);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  return ((warps[0] + warps[1]) + (warps[2] + warps[3])) +
         ((warps[4] + warps[5]) + (warps[6] + warps[7]));
}

}  // namespace baraquant::affine
