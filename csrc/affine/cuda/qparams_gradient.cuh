// SPDX-License-Identifier: BSD-3-Clause
// The fused backward of a learned scale on the GPU: one pass over dy and x gives dx and the sums
// for each scale (and zero point), in the order of Note [Order of the sums] in segments.h. There
// are no atomics, so every execution gives the same bits. A team is the threads that share a slice.
//   sum_runs_kernel    a team sums a slice of a segment that lies in runs
//   sum_columns_kernel a block sums a slice of rows, in which each column is a segment
//   sum_slices_kernel  adds up the slices if there are several
#pragma once

#include <cstdint>

#include "affine/elementwise_ops.h"
#include "affine/qparams.h"
#include "frame/cuda_plan.cuh"
#include "granularity/segments.h"
#include "machine/pack.cuh"

namespace baraquant::affine {

// --- types ---------------------------------------------------------------------------------------

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
  PartialSums partial;
  int team;         // threads of a team, for segments that lie in runs
  bool aligned;     // every pack lies within a run and is aligned for one access
  bool fast_range;  // FastestGrid accepts the range
};

// --- kernels -------------------------------------------------------------------------------------

template <typename C>
__device__ __forceinline__ void write_sum(double sum, int64_t segment, int64_t slice,
                                          int64_t slices, double* partial, C* result) {
  if (slices == 1) {
    result[segment] = static_cast<C>(sum);
  } else {
    partial[segment * slices + slice] = sum;
  }
}

// How many blocks must fit on a multiprocessor. This limits a thread to 80 registers (128 for
// double).
template <typename T>
constexpr int kGradientBlocks = sizeof(T) == 8 ? 2 : 3;

// Computes a pack's dx and adds its shares to the lanes. grid_at(i) is the grid of element i;
// `fast` says whether all of these fast grids accept their scales.
template <bool zero_point_gradient, typename T, int size, typename GridAt>
__device__ __forceinline__ void add_pack(const Pack<T, size>& dy, const Pack<T, size>& x,
                                         Pack<T, size>& dx, int count, bool fast,
                                         const GridAt& grid_at, QuantRange<ComputeType<T>> range,
                                         double (&scale_lanes)[size],
                                         double (&zero_point_lanes)[size]) {
  const auto add = [&](int i, const auto& grid) {
    const auto share = QparamsGradient<T>::apply(dy.at[i], x.at[i], dx.at[i], grid);
    if (i >= count) return;
    scale_lanes[i] += static_cast<double>(share.scale);
    if (zero_point_gradient) zero_point_lanes[i] += static_cast<double>(share.zero_point);
  };
  // No float16 is tiny.
  if constexpr (!std::is_same_v<T, Float16>) {
    using G = FastestGrid<ComputeType<T>>;
#pragma unroll
    for (int i = 0; i < size; ++i) fast = fast && !G::is_tiny(to_compute<ComputeType<T>>(x.at[i]));
  }
  if (fast) {
#pragma unroll
    for (int i = 0; i < size; ++i) add(i, grid_at(i));
  } else {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      add(i, Grid<ComputeType<T>>(grid_at(i).scale(), grid_at(i).zero_point(), range));
    }
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

// Where an element lies, and how far it is from the start of its run.
struct ElementPlace {
  int64_t at, in_run;

  __device__ __forceinline__ ElementPlace(const Segments& segments, int64_t s, int64_t j) {
    const int64_t run = segments.run_length.value, r = segments.run_of(j);
    in_run = j - r * run;
    at = segments.start(s) + r * segments.count * run + in_run;
  }
  __device__ __forceinline__ void advance(const Segments& segments) {
    const int64_t run = segments.run_length.value;
    const bool next_run = ++in_run == run;
    at += next_run ? (segments.count - 1) * run + 1 : 1;
    in_run = next_run ? 0 : in_run;
  }
};

template <typename T>
__device__ __forceinline__ void load_elements(Pack<T, kPackLanes>& dy, Pack<T, kPackLanes>& x,
                                              const GradientParams<T>& p, int64_t s, int64_t j,
                                              int count) {
  ElementPlace place(p.segments, s, j);
  if (p.aligned) {
    load(dy, p.args.dy, place.at, count, true);
    load(x, p.args.x, place.at, count, true);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPackLanes; ++i) {
    if (i < count) {
      dy.at[i] = p.args.dy[place.at];
      x.at[i] = p.args.x[place.at];
    }
    place.advance(p.segments);
  }
}

template <typename T>
__device__ __forceinline__ void store_elements(const Pack<T, kPackLanes>& dx,
                                               const GradientParams<T>& p, int64_t s, int64_t j,
                                               int count) {
  ElementPlace place(p.segments, s, j);
  if (p.aligned) return store(dx, p.args.dx, place.at, count, true);
#pragma unroll
  for (int i = 0; i < kPackLanes; ++i) {
    if (i < count) p.args.dx[place.at] = dx.at[i];
    place.advance(p.segments);
  }
}

template <typename T, bool zero_point_gradient>
__global__ void __launch_bounds__(kMaxTeam, kGradientBlocks<T>)
    sum_runs_kernel(const GradientParams<T> p) {
  using C = ComputeType<T>;
  const int team_log2 = __ffs(p.team) - 1;
  const int64_t task = (static_cast<int64_t>(blockIdx.x) * kMaxTeam + threadIdx.x) >> team_log2;
  const int member = static_cast<int>(threadIdx.x) & (p.team - 1);
  const int64_t slices = p.segments.slices;
  const bool has_task = task < p.segments.count * slices;
  const int64_t s = !has_task ? 0 : slices == 1 ? task : task / slices;
  const int64_t slice = has_task ? task - s * slices : 0;
  const int64_t end = has_task ? min((slice + 1) * kRunSlice, p.segments.length_of(s)) : int64_t(0);
  const FastestGrid<C> grid(p.q.scale_at(s), p.q.zero_point_at(s), p.q.range);
  const bool fast = p.fast_range && FastestGrid<C>::accepts(grid.scale(), grid.zero_point());
  const int64_t step = static_cast<int64_t>(p.team) * kPackLanes;

  double scale_lanes[kPackLanes] = {}, zero_point_lanes[kPackLanes] = {};
  for (int64_t j = slice * kRunSlice + member * kPackLanes; j < end; j += step) {
    const int count = static_cast<int>(min(int64_t(kPackLanes), end - j));
    Pack<T, kPackLanes> dy, x, dx;
    load_elements(dy, x, p, s, j, count);
    add_pack<zero_point_gradient>(
        dy, x, dx, count, fast, [=](int) { return grid; }, p.q.range, scale_lanes,
        zero_point_lanes);
    store_elements(dx, p, s, j, count);
  }

  const double scale_sum = sum_team(scale_lanes, p.team);
  const double zero_point_sum = zero_point_gradient ? sum_team(zero_point_lanes, p.team) : 0;
  if (!has_task || member != 0) return;
  write_sum(scale_sum, s, slice, slices, p.partial.scale, p.args.scale_gradient);
  if (zero_point_gradient) {
    write_sum(zero_point_sum, s, slice, slices, p.partial.zero_point, p.args.zero_point_gradient);
  }
}

template <typename T>
struct ColumnGeometry {
  static constexpr int kPack = 4;                  // columns whose grids fit in the registers
  static constexpr int kTileColumns = 32 * kPack;  // a warp lies along the columns
  static constexpr int kThreads = 32 * kRowLanes;  // and there is a warp for each lane of the rows
};

// Adds up each column's lanes (one in each warp) and writes the sums of this block's columns.
template <typename T, typename C>
__device__ __forceinline__ void sum_columns(const double (&lanes)[ColumnGeometry<T>::kPack],
                                            int64_t first_segment, int columns, int64_t slice,
                                            int64_t slices, double* partial, C* result) {
  constexpr int kPack = ColumnGeometry<T>::kPack, kTile = ColumnGeometry<T>::kTileColumns;
  __shared__ double shared[kRowLanes][kTile];
  static_assert(kRowLanes == 8);
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  __syncthreads();  // an earlier sum may still be read
#pragma unroll
  for (int i = 0; i < kPack; ++i) shared[y][x * kPack + i] = lanes[i];
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += ColumnGeometry<T>::kThreads) {
    const double sum = ((shared[0][c] + shared[1][c]) + (shared[2][c] + shared[3][c])) +
                       ((shared[4][c] + shared[5][c]) + (shared[6][c] + shared[7][c]));
    write_sum(sum, first_segment + c, slice, slices, partial, result);
  }
}

template <typename T, bool zero_point_gradient>
__global__ void __launch_bounds__(ColumnGeometry<T>::kThreads, kGradientBlocks<T>)
    sum_columns_kernel(const GradientParams<T> p) {
  using C = ComputeType<T>;
  constexpr int kPack = ColumnGeometry<T>::kPack, kTile = ColumnGeometry<T>::kTileColumns;
  constexpr int kUnroll = 2;
  const Segments& segments = p.segments;
  const int64_t columns = segments.columns, slices = segments.slices;
  const int64_t tiles = (columns + kTile - 1) / kTile;
  const int64_t block = blockIdx.x / tiles / slices, slice = blockIdx.x / tiles % slices;
  const int64_t tile = blockIdx.x % tiles * kTile;
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int64_t column = tile + x * kPack;
  const int count = static_cast<int>(min(int64_t(kPack), columns - column));
  const int64_t end = min((slice + 1) * kRowSlice, segments.length_of(block));

  bool fast = p.fast_range;
  const auto prepare = [&](int i) {
    const int64_t segment = block * columns + min(column + i, columns - 1);
    const C scale = p.q.scale_at(segment), zero_point = p.q.zero_point_at(segment);
    fast = fast && FastestGrid<C>::accepts(scale, zero_point);
    return FastestGrid<C>(scale, zero_point, p.q.range);
  };
  static_assert(kPack == 4);
  const FastestGrid<C> grids[kPack] = {prepare(0), prepare(1), prepare(2), prepare(3)};
  double scale_lanes[kPack] = {}, zero_point_lanes[kPack] = {};
  for (int64_t row = slice * kRowSlice + y; row < end && count > 0; row += kRowLanes * kUnroll) {
    Pack<T, kPack> dy[kUnroll], value[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (row + u * kRowLanes >= end) continue;
      const int64_t at = (segments.start(block) + row + u * kRowLanes) * columns + column;
      load(dy[u], p.args.dy, at, count, p.aligned);
      load(value[u], p.args.x, at, count, p.aligned);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (row + u * kRowLanes >= end) continue;
      const int64_t at = (segments.start(block) + row + u * kRowLanes) * columns + column;
      Pack<T, kPack> dx;
      add_pack<zero_point_gradient>(
          dy[u], value[u], dx, kPack, fast, [&](int i) { return grids[i]; }, p.q.range, scale_lanes,
          zero_point_lanes);
      store(dx, p.args.dx, at, count, p.aligned);
    }
  }

  const int width = static_cast<int>(min(int64_t(kTile), columns - tile));
  const int64_t first_segment = block * columns + tile;
  sum_columns<T>(scale_lanes, first_segment, width, slice, slices, p.partial.scale,
                 p.args.scale_gradient);
  if (zero_point_gradient) {
    sum_columns<T>(zero_point_lanes, first_segment, width, slice, slices, p.partial.zero_point,
                   p.args.zero_point_gradient);
  }
}

template <typename C>
__global__ void __launch_bounds__(kMaxTeam)
    sum_slices_kernel(const double* partial, C* result, int64_t segments, int64_t slices,
                      int team) {
  const int team_log2 = __ffs(team) - 1;
  const int64_t s = (static_cast<int64_t>(blockIdx.x) * kMaxTeam + threadIdx.x) >> team_log2;
  const int member = static_cast<int>(threadIdx.x) & (team - 1);
  double lanes[kPackLanes] = {};
  if (s < segments) {
    for (int64_t j = member * kPackLanes; j < slices; j += team * kPackLanes) {
#pragma unroll
      for (int i = 0; i < kPackLanes; ++i) {
        if (j + i < slices) lanes[i] += partial[s * slices + j + i];
      }
    }
  }
  const double sum = sum_team(lanes, team);
  if (s < segments && member == 0) result[s] = static_cast<C>(sum);
}

// --- launchers -----------------------------------------------------------------------------------

inline unsigned blocks_for(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

// While a call is only planned (frame/plan.h), adds the kernels that add up the slices to the plan.
template <typename T>
void note_sums_of_slices(const Segments& s, bool zero_point_gradient) {
  if (s.slices == 1) return;
  const auto plan = [&] {
    return cuda_plan<ComputeType<T>>("sum_slices", std::to_string(team_size(s.slices)), 0,
                                     "float64");
  };
  only_planned(plan);
  if (zero_point_gradient) only_planned(plan);
}

template <typename T, bool zero_point_gradient>
void launch_gradient(const GradientParams<T>& p, cudaStream_t stream) {
  const Segments& s = p.segments;
  if (only_planned([&] {
        const int64_t sums = s.slices > 1 ? s.slices * s.count * (zero_point_gradient ? 2 : 1) : 0;
        return cuda_plan<ComputeType<T>>(
            s.in_columns ? "qparams_gradient_columns" : "qparams_gradient_runs",
            std::to_string(s.in_columns ? kRowSlice : kRunSlice),
            sums * static_cast<int64_t>(sizeof(double)), "float64");
      })) {
    return note_sums_of_slices<T>(s, zero_point_gradient);
  }
  if (s.in_columns) {
    using G = ColumnGeometry<T>;
    const int64_t tiles = (s.columns + G::kTileColumns - 1) / G::kTileColumns;
    sum_columns_kernel<T, zero_point_gradient>
        <<<static_cast<unsigned>(tiles * s.slices * (s.count / s.columns)), G::kThreads, 0,
           stream>>>(p);
  } else {
    sum_runs_kernel<T, zero_point_gradient>
        <<<blocks_for(s.count * s.slices, kMaxTeam / p.team), kMaxTeam, 0, stream>>>(p);
  }
  if (s.slices == 1) return;
  const int team = team_size(s.slices);
  const unsigned blocks = blocks_for(s.count, kMaxTeam / team);
  sum_slices_kernel<<<blocks, kMaxTeam, 0, stream>>>(p.partial.scale, p.args.scale_gradient,
                                                     s.count, s.slices, team);
  if (zero_point_gradient) {
    sum_slices_kernel<<<blocks, kMaxTeam, 0, stream>>>(
        p.partial.zero_point, p.args.zero_point_gradient, s.count, s.slices, team);
  }
}

// partial: `slices` doubles for each segment, and as many again if the zero point has a gradient.
template <typename T>
void qparams_gradient_cuda(const QparamsGradientParams<T>& args, const Qparams<ComputeType<T>>& q,
                           const Segments& segments, double* partial, cudaStream_t stream) {
  GradientParams<T> p{args,
                      q,
                      segments,
                      {partial, nullptr},
                      team_size(segments.length),
                      false,
                      fastest_accepts_range(q.range)};
  if (partial) p.partial.zero_point = partial + segments.count * segments.slices;
  const int64_t pack = segments.in_columns ? ColumnGeometry<T>::kPack : kPackLanes;
  const int64_t run = segments.in_columns ? segments.columns : segments.run_length.value;
  const bool whole_packs = run % pack == 0 && (segments.in_columns || !segments.last_is_shorter ||
                                               segments.axis % pack == 0);
  p.aligned = (q.map.is_single() || whole_packs) && is_aligned(args.dy, 16) &&
              is_aligned(args.x, 16) && is_aligned(args.dx, 16);
  if (args.zero_point_gradient) {
    launch_gradient<T, true>(p, stream);
  } else {
    launch_gradient<T, false>(p, stream);
  }
}

}  // namespace baraquant::affine
