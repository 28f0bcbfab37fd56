// SPDX-License-Identifier: BSD-3-Clause
// Runs a direction (directions.h) over a dense tensor on the GPU: index, load packs, compute,
// store. A thread takes kUnroll packs whose widest side is 16 bytes, all loaded before the first is
// used. The bound is memory; 16-bit inputs leave about 30 instructions for an element, so a scale's
// grid is prepared once for a pack, or, where neighbours have different scales, for a column of
// packs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "affine/directions.h"
#include "affine/qparams.h"
#include "affine/segments.h"
#include "pack.cuh"

namespace baraquant::affine {

constexpr int kThreads = 256;

// How packs find their scales.
enum class ScaleAccess {
  kOne,      // one scale for a whole pack
  kColumns,  // each element of a pack has a scale, which the packs of the next rows share
  kMixed,    // any: looked up for each element, unless the pack's ends agree
};

template <typename Op>
struct TransformArgs {
  const typename Op::First* first;
  const typename Op::Second* second;
  typename Op::Result* result;
  uint8_t* mask;
  int64_t numel;
  Qparams<typename Op::C> q;
  bool aligned;  // first, second and result, for whole packs
  // Of kColumns: the rows whose columns share their scales are taken kUnroll at a time.
  Segments segments;
  Divisor packs_in_row, steps_in_block;
  int64_t blocks;
};

template <typename Op>
struct Geometry {
  static constexpr size_t kSecondSize =
      std::is_same_v<typename Op::Second, Nothing> ? 1 : sizeof(typename Op::Second);
  static constexpr size_t kWidest =
      std::max({sizeof(typename Op::First), kSecondSize, sizeof(typename Op::Result)});
  static constexpr int kPack = 16 / kWidest;
  // Enough bytes in flight: a thread reads 16 to 32 before it computes.
  static constexpr int kUnroll = sizeof(typename Op::First) * kPack >= 16 ? 2 : 4;
  static constexpr int64_t kBlockElements = int64_t(kThreads) * kPack * kUnroll;
  static_assert(kPack == 2 || kPack == 4 || kPack == 8);
};

// A thread's packs: where they begin and how many elements they have (none past the end).
template <int unroll>
struct Places {
  int64_t begin[unroll];
  int count[unroll];
};

template <typename Op, ScaleAccess access>
__device__ __forceinline__ Places<Geometry<Op>::kUnroll> find_places(const TransformArgs<Op>& args,
                                                                     int64_t& first_scale) {
  constexpr int kPack = Geometry<Op>::kPack, kUnroll = Geometry<Op>::kUnroll;
  Places<kUnroll> places;
  first_scale = 0;
  if constexpr (access == ScaleAccess::kColumns) {
    const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t step = args.packs_in_row.divide(item);
    const int64_t column = (item - step * args.packs_in_row.value) * kPack;
    const int64_t block = args.steps_in_block.divide(step);
    const int64_t row = (step - block * args.steps_in_block.value) * kUnroll;
    const bool exists = block < args.blocks;
    const int64_t columns = args.segments.columns;
    const int64_t start = exists ? args.segments.start(block) : 0;
    const int64_t rows = exists ? args.segments.length_of(block) : 0;
    if (exists) first_scale = block * columns + column;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      places.begin[u] = (start + row + u) * columns + column;
      places.count[u] = row + u < rows ? kPack : 0;
    }
  } else {
    const int64_t block = static_cast<int64_t>(blockIdx.x) * Geometry<Op>::kBlockElements;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      places.begin[u] = block + (u * kThreads + static_cast<int>(threadIdx.x)) * kPack;
      const int64_t left = args.numel - places.begin[u];
      places.count[u] = left >= kPack ? kPack : static_cast<int>(max(left, int64_t(0)));
    }
  }
  return places;
}

// The bits of a pack's elements, in the lowest bits.
template <int size>
__device__ __forceinline__ unsigned read_bits(const uint8_t* mask, int64_t begin) {
  return static_cast<unsigned>(mask[begin / 8]) >> (begin % 8);
}

// NB: all threads of the warp must come here; those past the end with count 0 and no bits. The
// packs of a byte belong to neighbours in a warp.
template <int size>
__device__ __forceinline__ void write_bits(unsigned bits, uint8_t* mask, int64_t begin, int count) {
  static_assert(size <= 8);
#pragma unroll
  for (int width = size; width < 8; width *= 2) {
    bits |= __shfl_down_sync(0xffffffffu, bits, width / size) << width;
  }
  if (count > 0 && begin % 8 == 0) mask[begin / 8] = static_cast<uint8_t>(bits);
}

// Calls f with the grid of a scale: the fast one where there is one and it takes this scale.
template <typename Op, typename F>
__device__ __forceinline__ void with_grid(typename Op::C scale, typename Op::C zero_point,
                                          QuantRange<typename Op::C> range, const F& f) {
  if constexpr (Op::kRounds && std::is_same_v<typename Op::C, float>) {
    if (FastGrid::accepts(scale, zero_point, range)) {
      return f(FastGrid(scale, zero_point, range));
    }
  }
  f(Grid<typename Op::C>(scale, zero_point, range));
}

template <typename Op>
struct Packs {
  static constexpr int kPack = Geometry<Op>::kPack;
  Pack<typename Op::First, kPack> first;
  Pack<typename Op::Second, kPack> second;
  Pack<typename Op::Result, kPack> result;
  unsigned bits_in, bits_out;

  template <typename G>
  __device__ __forceinline__ void apply(int i, const G& grid) {
    typename Op::Second other{};
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) other = second.at[i];
    bool bit = (bits_in >> i) & 1u;
    result.at[i] = Op::apply(first.at[i], other, bit, grid);
    if constexpr (Op::kMask == Mask::kWrite) bits_out |= static_cast<unsigned>(bit) << i;
  }
};

// One pack, of one scale or, where it is mixed, of several.
template <typename Op, bool mixed>
__device__ __forceinline__ void apply_pack(Packs<Op>& packs, const TransformArgs<Op>& args,
                                           int64_t begin, int count) {
  constexpr int kPack = Geometry<Op>::kPack;
  const auto& q = args.q;
  const int64_t index = q.map.is_single() ? 0 : q.map.index(begin);
  bool one = true;
  if constexpr (mixed) {
    // Runs no shorter than a pack: where the ends agree, so does all between.
    one = q.map.run() >= kPack && q.map.step() == 0 && index == q.map.index(begin + count - 1);
  }
  if (one) {
    with_grid<Op>(q.scale_at(index), q.zero_point_at(index), q.range, [&](const auto& grid) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) packs.apply(i, grid);
    });
    return;
  }
  if constexpr (mixed) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i >= count) continue;
      const int64_t at = q.map.index(begin + i);
      packs.apply(i, Grid<typename Op::C>(q.scale_at(at), q.zero_point_at(at), q.range));
    }
  }
}

template <typename Op, ScaleAccess access>
__global__ void __launch_bounds__(kThreads) transform_kernel(const TransformArgs<Op> args) {
  constexpr int kPack = Geometry<Op>::kPack, kUnroll = Geometry<Op>::kUnroll;
  int64_t first_scale;
  const Places<kUnroll> places = find_places<Op, access>(args, first_scale);

  Packs<Op> packs[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t begin = places.begin[u];
    const int count = places.count[u];
    packs[u].bits_in = packs[u].bits_out = 0;
    if (count == 0) continue;
    load(packs[u].first, args.first, begin, count, args.aligned);
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) {
      load(packs[u].second, args.second, begin, count, args.aligned);
    }
    if constexpr (Op::kMask == Mask::kRead) packs[u].bits_in = read_bits<kPack>(args.mask, begin);
  }

  if constexpr (access == ScaleAccess::kColumns) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      with_grid<Op>(args.q.scale_at(first_scale + i), args.q.zero_point_at(first_scale + i),
                    args.q.range, [&](const auto& grid) {
#pragma unroll
                      for (int u = 0; u < kUnroll; ++u) packs[u].apply(i, grid);
                    });
    }
  }

#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t begin = places.begin[u];
    const int count = places.count[u];
    if (count > 0) {
      if constexpr (access != ScaleAccess::kColumns) {
        apply_pack<Op, access == ScaleAccess::kMixed>(packs[u], args, begin, count);
      }
      store(packs[u].result, args.result, begin, count, args.aligned);
    }
    if constexpr (Op::kMask == Mask::kWrite) {
      const unsigned valid = (1u << count) - 1u;
      write_bits<kPack>(packs[u].bits_out & valid, args.mask, begin, count);
    }
  }
}

template <typename Op, ScaleAccess access>
void launch_transform(const TransformArgs<Op>& args, int64_t threads, cudaStream_t stream) {
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  transform_kernel<Op, access><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <typename Op>
void transform_cuda(const typename Op::First* first, const typename Op::Second* second,
                    typename Op::Result* result, uint8_t* mask, int64_t numel,
                    const Qparams<typename Op::C>& q, cudaStream_t stream) {
  using G = Geometry<Op>;
  TransformArgs<Op> args{first, second, result, mask, numel, q, false, {}, {}, {}, 0};
  args.aligned = is_aligned(first, G::kPack * sizeof(typename Op::First)) &&
                 is_aligned(result, G::kPack * sizeof(typename Op::Result)) &&
                 (second == nullptr || is_aligned(second, G::kPack * G::kSecondSize));
  const int64_t elements_of_thread = G::kPack * G::kUnroll;
  const int64_t threads = (numel + elements_of_thread - 1) / elements_of_thread;
  if (!q.map.fits_packs(G::kPack)) {
    return launch_transform<Op, ScaleAccess::kMixed>(args, threads, stream);
  }
  if (q.map.step() == 0) return launch_transform<Op, ScaleAccess::kOne>(args, threads, stream);
  // A byte of a mask is written by neighbours in a warp: rows are whole bytes.
  if (Op::kMask != Mask::kNone && q.map.inner.value % 8 != 0) {
    return launch_transform<Op, ScaleAccess::kMixed>(args, threads, stream);
  }
  args.segments = make_segments(q.map);
  args.blocks = args.segments.count / args.segments.columns;
  args.packs_in_row = Divisor(args.segments.columns / G::kPack);
  args.steps_in_block = Divisor((args.segments.length + G::kUnroll - 1) / G::kUnroll);
  launch_transform<Op, ScaleAccess::kColumns>(
      args, args.blocks * args.steps_in_block.value * args.packs_in_row.value, stream);
}

}  // namespace baraquant::affine
