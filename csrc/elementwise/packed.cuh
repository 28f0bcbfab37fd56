// SPDX-License-Identifier: BSD-3-Clause
// Elementwise operations between numbers and bytes, on whole packs at once. These read or write so
// little that a thread must take several packs and spend few instructions on each element: all
// loads, of packs and of their scales, come first, and the arithmetic is that of packed_math.h.
#pragma once

#include <cstdint>

#include "elementwise/args.cuh"
#include "elementwise/packed_math.h"
#include "frame/cuda_plan.cuh"
#include "machine/pack.cuh"

namespace baraquant::affine {

// How an operation computes a pack. If kExists:
//   Grid            what it prepares for a scale that Grid::accepts
//   kPack, kPacks   elements of a pack, and packs of a thread, if a pack has one scale
//   kColumns        columns that a thread takes, if each column has a scale
//   apply(x, grid_at, y) -> whether it could compute the pack; grid_at(i) is the grid of element i
template <typename Op>
struct PackedOp {
  static constexpr bool kExists = false;
};

template <typename Q, typename Y>
  requires(sizeof(Q) == 1 && !std::is_same_v<Y, double>)
struct PackedOp<Dequantize<Q, Y, float>> {
  static constexpr bool kExists = true;
  using Grid = ByteGrid<Q>;
  static constexpr int kPack = 16 / sizeof(Y);  // one store of 16 bytes: neighbours fill sectors
  static constexpr int kPacks = 32 / kPack;
  static constexpr int kColumns = kPack;

  template <int size, typename GridAt>
  __device__ __forceinline__ static bool apply(const Words<Q, size>& x, const GridAt& grid_at,
                                               Words<Y, size>& y) {
    const auto bytes = Grid::prepared(x);
    float numbers[size];
#pragma unroll
    for (int i = 0; i < size; ++i) numbers[i] = grid_at(i).dequantize(bytes, i);
    y = words_of<Y>(numbers);
    return true;
  }
};

// Numbers of 16 bits to bytes.
template <typename T>
  requires(sizeof(T) == 2)
struct PackedOp<Quantize<T, uint8_t, Mask::kNone>> {
  static constexpr bool kExists = true;
  using Grid = QuotientGrid<T>;
  static constexpr int kPack = 16;  // one store of 16 bytes
  static constexpr int kPacks = 2;
  static constexpr int kColumns = 8;

  template <int size, typename GridAt>
  __device__ __forceinline__ static bool apply(Words<T, size> x, const GridAt& grid_at,
                                               Words<uint8_t, size>& y) {
    limit_words(x, grid_at);
    if (has_nan(x)) return false;
#pragma unroll
    for (int w = 0; w < y.kCount; ++w) {
      uint32_t sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[i] = grid_at(4 * w + i).byte_of_limited(to_compute<float>(x.get(4 * w + i)));
      }
      y.at[w] = static_cast<int32_t>(pack_bytes(sums[0], sums[1], sums[2], sums[3]));
    }
    return true;
  }
};

template <typename Op>
struct PackedArgs {
  const typename Op::First* first;
  typename Op::Result* result;
  int64_t numel;
  Qparams<typename Op::C> q;
  ColumnArgs columns;
};

// Computes a pack number by number, for scales and numbers that apply() does not take.
template <typename Op, int size, typename GridAt>
__device__ __forceinline__ void compute_each(const Words<typename Op::First, size>& x,
                                             const GridAt& grid_at,
                                             Words<typename Op::Result, size>& y) {
#pragma unroll
  for (int i = 0; i < size; ++i) {
    bool unused = false;
    y.set(i, Op::apply(x.get(i), {}, unused, grid_at(i)));
  }
}

template <typename Op>
__global__ void __launch_bounds__(kThreads) packed_kernel(const PackedArgs<Op> args) {
  using P = PackedOp<Op>;
  using C = typename Op::C;
  constexpr int kPack = P::kPack, kPacks = P::kPacks, kStep = kThreads * kPack;
  const uint32_t begin = blockIdx.x * (kStep * kPacks) + threadIdx.x * kPack;
  const uint32_t numel = static_cast<uint32_t>(args.numel);
  const auto has = [&](int p) { return begin + p * kStep < numel; };

  Words<typename Op::First, kPack> packs[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (has(p)) load_words(packs[p], args.first, begin + p * kStep);
  }
  uint32_t index[kPacks];
  C scales[kPacks], zero_points[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    index[p] = args.q.map.index_small(has(p) ? begin + p * kStep : 0);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) scales[p] = args.q.scale_at(index[p]);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) zero_points[p] = args.q.zero_point_at(index[p]);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!has(p)) return;
    Words<typename Op::Result, kPack> result;
    const typename P::Grid grid(scales[p], zero_points[p], args.q.range);
    const bool accepted = P::Grid::accepts(scales[p], zero_points[p], args.q.range);
    if (!accepted || !P::apply(packs[p], [&](int) { return grid; }, result)) {
      const Grid<C> exact(scales[p], zero_points[p], args.q.range);
      compute_each<Op>(packs[p], [&](int) { return exact; }, result);
    }
    store_words(result, args.result, begin + p * kStep);
  }
}

// The same if each column has a scale of its own: a thread takes kRows rows at a time.
constexpr int kPackedRows = 4;

template <typename Op>
__global__ void __launch_bounds__(kThreads) packed_columns_kernel(const PackedArgs<Op> args) {
  using P = PackedOp<Op>;
  using C = typename Op::C;
  constexpr int kPack = P::kColumns, kRows = kPackedRows;
  const ColumnPlace place = find_columns<kPack, kRows>(args.columns);
  if (place.begin >= place.end) return;

  Words<typename Op::First, kPack> rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = place.begin + r * place.next;
    if (at < place.end) load_words(rows[r], args.first, at);
  }
  C scales[kPack], zero_points[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) scales[i] = args.q.scale_at(place.first_scale + i);
#pragma unroll
  for (int i = 0; i < kPack; ++i) zero_points[i] = args.q.zero_point_at(place.first_scale + i);
  typename P::Grid grids[kPack];
  bool accepted = true;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    grids[i] = typename P::Grid(scales[i], zero_points[i], args.q.range);
    accepted = accepted && P::Grid::accepts(scales[i], zero_points[i], args.q.range);
  }
  const auto grid_at = [&](int i) { return grids[i]; };
  const auto exact_at = [&](int i) { return Grid<C>(scales[i], zero_points[i], args.q.range); };
  for (int64_t begin = place.begin; begin < place.end; begin += kRows * place.next) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = begin + r * place.next, at_next = at + kRows * place.next;
      if (at >= place.end) return;
      Words<typename Op::Result, kPack> result;
      if (!accepted || !P::apply(rows[r], grid_at, result)) {
        compute_each<Op>(rows[r], exact_at, result);
      }
      store_words(result, args.result, at);
      // NB: as soon as the row is done, so that it comes while the others are computed.
      if (at_next < place.end) load_words(rows[r], args.first, at_next);
    }
  }
}

// Whether the packed kernels take the call: whole packs at aligned addresses, each with one scale
// or with one for each column, and few enough elements for indices of 32 bits.
template <typename Op>
bool runs_packed(const typename Op::First* first, const typename Op::Result* result, int64_t numel,
                 const ScaleMap& map) {
  using P = PackedOp<Op>;
  const int pack = map.step() == 1 ? P::kColumns : P::kPack;
  const bool whole =
      map.step() == 1 ? map.inner.value % pack == 0 : numel % pack == 0 && map.fits_packs(pack);
  return whole && numel < (int64_t(1) << 31) &&
         is_aligned(first, pack * sizeof(typename Op::First)) &&
         is_aligned(result, pack * sizeof(typename Op::Result));
}

template <typename Op>
void launch_packed(PackedArgs<Op> args, cudaStream_t stream) {
  using P = PackedOp<Op>;
  const bool in_columns = args.q.map.step() == 1;
  if (in_columns) args.columns = ColumnArgs(args.q.map, P::kColumns, kPackedRows);
  if (only_planned([&] {
        const int rows = in_columns ? args.columns.slabs * kPackedRows : kThreads;
        const int pack = in_columns ? P::kColumns : P::kPack * P::kPacks;
        return cuda_plan<typename Op::C>(
            std::string(Op::kName) + (in_columns ? "_packed_columns" : "_packed"),
            std::to_string(rows) + "x" + std::to_string(pack));
      })) {
    return;
  }
  const auto blocks = [](int64_t count, int64_t per_block) {
    return static_cast<unsigned>((count + per_block - 1) / per_block);
  };
  if (in_columns) {
    packed_columns_kernel<Op>
        <<<blocks(args.columns.threads(), kThreads), kThreads, 0, stream>>>(args);
  } else {
    packed_kernel<Op>
        <<<blocks(args.numel, kThreads * P::kPack * P::kPacks), kThreads, 0, stream>>>(args);
  }
}

}  // namespace baraquant::affine
