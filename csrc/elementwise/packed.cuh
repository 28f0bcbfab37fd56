// SPDX-License-Identifier: BSD-3-Clause
// Elementwise operations between numbers and bytes, on whole packs at once. These read or write so
// little that a thread must take several packs and spend few instructions on each element: all
// loads, of packs and of their scales, come first, and the arithmetic is that of packed_math.h.
#pragma once

#include <cstdint>

#include "affine/packed_math.h"
#include "elementwise/args.cuh"
#include "frame/cuda_plan.cuh"
#include "machine/pack.cuh"

namespace baraquant::affine {

// How an operation computes a pack. If kExists:
//   Grid            what it prepares for a scale that Grid::accepts
//   kPack, kPacks   elements of a pack, and packs of a thread
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
  static constexpr int kPack = 32 / sizeof(Y);  // two stores of 16 bytes
  static constexpr int kPacks = 32 / kPack;

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

template <typename Op>
struct PackedArgs {
  const typename Op::First* first;
  typename Op::Result* result;
  int64_t numel;
  Qparams<typename Op::C> q;
};

// Computes a pack number by number, for scales and numbers that apply() does not take.
template <typename Op, int size>
__device__ __forceinline__ void compute_each(const Words<typename Op::First, size>& x,
                                             const Grid<typename Op::C>& grid,
                                             Words<typename Op::Result, size>& y) {
#pragma unroll
  for (int i = 0; i < size; ++i) {
    bool unused = false;
    y.set(i, Op::apply(x.get(i), {}, unused, grid));
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
      compute_each<Op>(packs[p], Grid<C>(scales[p], zero_points[p], args.q.range), result);
    }
    store_words(result, args.result, begin + p * kStep);
  }
}

// Whether the packed kernel takes the call: whole packs, each with one scale, at aligned addresses,
// and few enough elements for indices of 32 bits.
template <typename Op>
bool runs_packed(const typename Op::First* first, const typename Op::Result* result, int64_t numel,
                 const ScaleMap& map) {
  constexpr int kPack = PackedOp<Op>::kPack;
  return numel % kPack == 0 && numel < (int64_t(1) << 31) && map.step() == 0 &&
         map.fits_packs(kPack) && is_aligned(first, kPack * sizeof(typename Op::First)) &&
         is_aligned(result, kPack * sizeof(typename Op::Result));
}

template <typename Op>
void launch_packed(const PackedArgs<Op>& args, cudaStream_t stream) {
  using P = PackedOp<Op>;
  if (only_planned([&] {
        return cuda_plan<typename Op::C>(
            std::string(Op::kName) + "_packed",
            std::to_string(kThreads) + "x" + std::to_string(P::kPack * P::kPacks));
      })) {
    return;
  }
  constexpr int64_t kPerBlock = kThreads * P::kPack * P::kPacks;
  packed_kernel<Op>
      <<<static_cast<unsigned>((args.numel + kPerBlock - 1) / kPerBlock), kThreads, 0, stream>>>(
          args);
}

}  // namespace baraquant::affine
