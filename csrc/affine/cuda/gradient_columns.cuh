// SPDX-License-Identifier: BSD-3-Clause
// The gradient of the scale over segments that lie in columns: a block sums a slice of rows, in
// which each column is a segment (gradient_sums.cuh).
#pragma once

#include <type_traits>

#include "affine/cuda/gradient_sums.cuh"

namespace baraquant::affine {

template <typename T>
struct ColumnGeometry {
  static constexpr int kPack = 4;                  // columns whose grids fit in the registers
  static constexpr int kTileColumns = 32 * kPack;  // a warp lies along the columns
  static constexpr int kThreads = 32 * kRowLanes;  // and there is a warp for each lane of the rows
  static constexpr int kRows = 2;                  // rows that a thread computes together
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
    C scales[kPack], zero_points[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) scales[i] = p.q.scale_at(first_segment + min(i, count - 1));
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      zero_points[i] = p.q.zero_point_at(first_segment + min(i, count - 1));
    }
    fast = p.fast_range;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      grids[i] = FastestPlainGrid<C>(scales[i], zero_points[i], p.q.range);
      fast = fast && FastestPlainGrid<C>::accepts(scales[i], zero_points[i]);
    }
  }
};

// Loads `rows` packs of `count` columns that lie `next` elements below one another, as one pack.
template <typename T, int rows>
__device__ __forceinline__ auto load_some_rows(const GradientParams<T>& p, int64_t at, int64_t next,
                                               int count) {
  constexpr int kPack = ColumnGeometry<T>::kPack;
  GradientPack<T, rows * kPack> all;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    Words<T, kPack> dy, x;
    load_some_words(dy, p.args.dy, at + r * next, count);
    load_some_words(x, p.args.x, at + r * next, count);
    all.set_row(r, dy, x);
  }
  return all;
}

// Stores row r of dx; whole: all of a pack's columns exist, and are stored in one access.
template <typename T, bool whole, int size>
__device__ __forceinline__ void store_row(int r, const Words<T, size>& dx, T* to, int64_t at,
                                          int count) {
  Words<T, ColumnGeometry<T>::kPack> row;
#pragma unroll
  for (int w = 0; w < row.kCount; ++w) row.at[w] = dx.at[r * row.kCount + w];
  if constexpr (whole) {
    store_words(row, to, at);
  } else {
    store_some_words(row, to, at, count);
  }
}

// whole: p.aligned.
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
  const int64_t end = min((slice + 1) * kRowSlice, segments.length_of(block));
  // This thread's rows are kRowLanes apart. `at` is where the next one lies, `rows` are left.
  int rows = count > 0 ? static_cast<int>((end - first_row + kRowLanes - 1) / kRowLanes) : 0;
  int64_t at = (segments.start(block) + first_row) * columns + column;
  const int64_t next = kRowLanes * columns;

  using Ahead = PacksAhead<T, kPack, kRows, G::kThreads>;
  __shared__ typename Ahead::Memory memory;
  Ahead ahead(memory);
  int copied_rows = rows;
  int64_t copied_at = at;
  const auto copy_next = [&] {
    if constexpr (whole) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t from = copied_at + r * next;
        if (r < copied_rows) ahead.copy(r, p.args.dy + from, p.args.x + from);
      }
      ahead.done();
      copied_rows -= kRows, copied_at += kRows * next;
    }
  };
#pragma unroll
  for (int i = 0; i < Ahead::kSteps; ++i) copy_next();
  const GradientColumns<T> own(p, block * columns + min(column, columns - 1), max(count, 1));
  ThreadSums<kPack, zero_point_gradient> lanes;
  const auto compute = [&](auto row_count) {
    constexpr int kCount = decltype(row_count)::value;
    GradientPack<T, kCount * kPack> packs;
    if constexpr (whole) {
      packs = ahead.template take<kCount>();
      copy_next();
    } else {
      packs = load_some_rows<T, kCount>(p, at, next, count);
    }
    const auto grid_at = [&](int i) { return own.grids[i]; };
    const auto dx = add_pack(packs, kCount * kPack, own.fast, grid_at, p.q.range, lanes);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      store_row<T, whole>(r, dx, p.args.dx, at + r * next, count);
    }
    rows -= kCount, at += kCount * next;
  };
  static_assert(kRows == 2);
  while (rows >= kRows) compute(std::integral_constant<int, kRows>());
  if (rows > 0) compute(std::integral_constant<int, 1>());

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
