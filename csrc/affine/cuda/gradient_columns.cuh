// SPDX-License-Identifier: BSD-3-Clause
// The gradient of the scale over segments that lie in columns: a block sums a slice of rows, in
// which each column is a segment (gradient_sums.cuh).
#pragma once

#include "affine/cuda/gradient_sums.cuh"

namespace baraquant::affine {

template <typename T>
struct ColumnGeometry {
  static constexpr int kPack = 4;                  // columns whose grids fit in the registers
  static constexpr int kTileColumns = 32 * kPack;  // a warp lies along the columns
  static constexpr int kThreads = 32 * kRowLanes;  // and there is a warp for each lane of the rows
  static constexpr int kRows = 2;                  // a thread loads so many rows ahead
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
    write_sum(sum, (first_segment + c) * slices + slice, slices, partial, result);
  }
}

// The grids of a pack's columns. The last one repeats if there are fewer columns.
template <typename T>
struct GradientColumns {
  using C = ComputeType<T>;
  static constexpr int kPack = ColumnGeometry<T>::kPack;
  FastestPlainGrid<C> grids[kPack];
  bool fast;

  __device__ __forceinline__ GradientColumns(const GradientParams<T>& p, int64_t first_segment,
                                             int count) {
    fast = p.fast_range;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const int64_t segment = first_segment + min(i, count - 1);
      const C scale = p.q.scale_at(segment), zero_point = p.q.zero_point_at(segment);
      grids[i] = FastestPlainGrid<C>(scale, zero_point, p.q.range);
      fast = fast && FastestPlainGrid<C>::accepts(scale, zero_point);
    }
  }
};

// whole: p.aligned, so that every pack has kPack columns and is loaded in one access.
template <typename T, bool zero_point_gradient, bool whole>
__global__ void __launch_bounds__(ColumnGeometry<T>::kThreads,
                                  kGradientBlocks<T, zero_point_gradient>)
    sum_columns_kernel(const GradientParams<T> p) {
  using G = ColumnGeometry<T>;
  constexpr int kPack = G::kPack, kTile = G::kTileColumns, kRows = G::kRows;
  const Segments& segments = p.segments;
  const int64_t columns = segments.columns, slices = segments.slices;
  const int64_t tiles = (columns + kTile - 1) / kTile;
  const int64_t block = blockIdx.x / tiles / slices, slice = blockIdx.x / tiles % slices;
  const int64_t tile = blockIdx.x % tiles * kTile;
  const int64_t column = tile + threadIdx.x % 32 * kPack;
  const int count = static_cast<int>(min(int64_t(kPack), columns - column));
  const int64_t first_row = slice * kRowSlice + threadIdx.x / 32;
  // How many rows this thread takes, which are kRowLanes apart.
  const int64_t end = min((slice + 1) * kRowSlice, segments.length_of(block));
  const int rows = count > 0 ? static_cast<int>((end - first_row + kRowLanes - 1) / kRowLanes) : 0;
  const int64_t begin = (segments.start(block) + first_row) * columns + column;
  const int64_t next = kRowLanes * columns;

  GradientPack<T, kPack> ahead[kRows] = {};
  const auto load_rows = [&](int row) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= rows) continue;
      const int64_t at = begin + (row + r) * next;
      if constexpr (whole) {
        load_words(ahead[r].dy, p.args.dy, at);
        load_words(ahead[r].x, p.args.x, at);
      } else {
        load_some_words(ahead[r].dy, p.args.dy, at, count);
        load_some_words(ahead[r].x, p.args.x, at, count);
      }
    }
  };
  load_rows(0);
  ThreadSums<kPack, zero_point_gradient> lanes;
  const GradientColumns<T> own(p, block * columns + min(column, columns - 1), max(count, 1));
  for (int row = 0; row < rows; row += kRows) {
    GradientPack<T, kPack> packs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) packs[r] = ahead[r];
    if constexpr (kLoadsAhead<T>) load_rows(row + kRows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= rows) continue;
      const int64_t at = begin + (row + r) * next;
      const auto dx = add_pack(
          packs[r], kPack, own.fast, [&](int i) { return own.grids[i]; }, p.q.range, lanes);
      if constexpr (whole) {
        store_words(dx, p.args.dx, at);
      } else {
        store_some_words(dx, p.args.dx, at, count);
      }
    }
    if constexpr (!kLoadsAhead<T>) load_rows(row + kRows);
  }

  const int width = static_cast<int>(min(int64_t(kTile), columns - tile));
  const int64_t first_segment = block * columns + tile;
  sum_columns<T>(lanes.scale, first_segment, width, slice, slices, p.partial.scale,
                 p.args.scale_gradient);
  if constexpr (zero_point_gradient) {
    sum_columns<T>(lanes.zero_point, first_segment, width, slice, slices, p.partial.zero_point,
                   p.args.zero_point_gradient);
  }
}

}  // namespace baraquant::affine
