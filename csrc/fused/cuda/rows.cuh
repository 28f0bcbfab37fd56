// SPDX-License-Identifier: BSD-3-Clause
// Reads rows once, makes new rows of them, and stores these or quantizes them at once: load, make,
// find the range, choose, quantize, store. A stage (norm.cu, hadamard.cu) makes a row in registers;
// that of an activation lies in shared memory (activation.cu). A team of threads shares a row. Its
// size depends on the length alone where the order of the sums does (math.h): every thread holds one
// pack of neighbours of each kMaxLanes elements. If a row ends within a pack or is not aligned, its
// packs are loaded and stored element by element; the arithmetic stays the same.
//
// Note [Rows in flight]
// A row waits for memory, then for its range, and then it is written. A multiprocessor is busy
// meanwhile if it has about four rows, so the number of registers is limited to what lets it hold
// them. To stay below it, a stage keeps a row as packed words, converts them anew in each phase
// (forget_conversions), and finishes one pack before the next.
#pragma once

#include <algorithm>

#include "elementwise/fast_math.h"
#include "frame/cuda_plan.cuh"
#include "fused/math.h"
#include "fused/rows.h"
#include "machine/early_launch.cuh"
#include "range/cuda/extremes.cuh"

namespace baraquant::fused {

using range::kAllLanes;
constexpr int kWarp = 32;

template <typename T>
constexpr int kPack = 32 / static_cast<int>(sizeof(T));  // 32 bytes, as in elementwise/cuda.cuh
// Rows of short teams share a block of this many threads.
constexpr int kSharedThreads = 256;
// The most packs of a thread; longer rows do not fit into registers.
constexpr int kMaxPacks = 8;
// The threads of a team of kMaxLanes lanes, which is the largest but for few rows.
template <typename T>
constexpr int kTeam = kMaxLanes / kPack<T>;
static_assert(kTeam<BFloat16> >= kSharedThreads);

template <typename T>
using RowWords = Words<T, kPack<T>>;

// The numbers of a pack.
template <typename T>
struct Numbers {
  using C = ComputeType<T>;
  C at[kPack<T>];

  Numbers() = default;
  __device__ __forceinline__ explicit Numbers(const RowWords<T>& words) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) at[i] = to_compute<C>(words.get(i));
  }
  // Makes the elements from `count` on +0. NB: one branch for a pack, since whole packs are many.
  __device__ __forceinline__ void clear_from(int count) {
    if (count >= kPack<T>) return;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i >= count) at[i] = C(0);
    }
  }
  // Rounds them to T. One instruction rounds two numbers to 16 bits.
  __device__ __forceinline__ void write(RowWords<T>& words) const {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int w = 0; w < words.kCount; ++w) {
        words.at[w] = word_of_two<T>(at[2 * w], at[2 * w + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) words.set(i, from_compute<T>(at[i]));
    }
  }
};

// Which threads work on which rows.
struct Mapping {
  int team_log2 = 0, threads = kSharedThreads;
  bool whole = false;  // every pack is whole and aligned

  BARAQUANT_HD bool is_block() const { return (1 << team_log2) > kWarp; }
  int64_t grid(int64_t rows) const { return divide_up(rows << team_log2, threads); }
};

template <typename T>
Mapping map_rows(int64_t length, int max_lanes_log2) {
  const int pack_log2 = log2_up(kPack<T>, 8), lanes = log2_up(length, max_lanes_log2);
  Mapping m;
  m.team_log2 = lanes > pack_log2 ? lanes - pack_log2 : 0;
  if (m.is_block()) m.threads = 1 << m.team_log2;
  return m;
}

// Makes the compiler take the words for new ones. NB: otherwise it keeps the numbers that it once
// converted, which take twice the registers of 16-bit words.
template <typename T>
__device__ __forceinline__ void forget_conversions(RowWords<T>& words) {
#pragma unroll
  for (int w = 0; w < words.kCount; ++w) {
    if constexpr (sizeof(T) == 8) {
      asm volatile("" : "+l"(words.at[w]));
    } else {
      asm volatile("" : "+r"(words.at[w]));
    }
  }
}

// The place of a thread.
struct Place {
  int64_t row = 0;
  int lane = 0, team = 1, team_log2 = 0;
  int64_t length = 0;  // 0: beyond the last row
  bool whole = false;

  __device__ Place(const Mapping& m, int64_t rows, int64_t row_length)
      : team(1 << m.team_log2), team_log2(m.team_log2), whole(m.whole) {
    const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    row = thread >> team_log2;
    lane = static_cast<int>(thread) & (team - 1);
    if (row < rows) length = row_length;
  }
  // How many packs the thread has.
  __device__ int packs(int pack) const {
    return static_cast<int>((divide_up(length, pack) + team - 1 - lane) >> team_log2);
  }
  // The first element of pack p, and how many elements it has.
  __device__ int64_t offset(int p, int pack) const { return (int64_t(p) * team + lane) * pack; }
  __device__ int count(int p, int pack) const {
    const int64_t left = length - offset(p, pack);
    return left >= pack ? pack : left > 0 ? static_cast<int>(left) : 0;
  }
};

// Missing elements become +0.
template <typename T>
__device__ __forceinline__ void load_pack(RowWords<T>& words, const T* row, const Place& place,
                                          int p) {
  const int count = place.count(p, kPack<T>);
  if (place.whole && count > 0) {
    load_words(words, row, place.offset(p, kPack<T>));
    return;
  }
  words.fill(T{});
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < count) words.set(i, row[place.offset(p, kPack<T>) + i]);
  }
}

template <typename T>
__device__ __forceinline__ void store_pack(const RowWords<T>& words, T* row, const Place& place,
                                           int p) {
  const int count = place.count(p, kPack<T>);
  if (place.whole && count > 0) {
    store_words(words, row, place.offset(p, kPack<T>));
  } else {
    store_some_words(words, row, place.offset(p, kPack<T>), count);
  }
}

template <typename T, typename G>
__device__ __forceinline__ void quantize_pack(const RowWords<T>& words, uint8_t* values,
                                              const Place& place, int p, const G& grid) {
  constexpr int kWords = kPack<T> / 4;
  const Numbers<T> x(words);
  Pack<uint32_t, kWords> result;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = grid.quantize_byte(x.at[4 * w + i]);
    result.at[w] = pack_bytes(q[0], q[1], q[2], q[3]);
  }
  const int count = place.count(p, kPack<T>);
  uint8_t* const to = values + place.offset(p, kPack<T>);
  if (place.whole && count > 0) {
    *reinterpret_cast<Pack<uint32_t, kWords>*>(to) = result;
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < count) to[i] = static_cast<uint8_t>(result.at[i / 4] >> (i % 4 * 8));
  }
}

// Chooses the scale of the made row, from the range of this thread's share of it, and writes its
// integers. for_packs(f) calls f(words, p) for each pack p of the share. NB: all threads of a block
// call this.
template <typename T, typename ForPacks>
__device__ __forceinline__ void finish_quantized(const range::Extremes<T>& mine,
                                                 const Rows<T>& rows, const Mapping& mapping,
                                                 const Place& place, const ForPacks& for_packs) {
  using C = ComputeType<T>;
  using Fastest = affine::FastestGrid<C>;
  const bool two_sided = !rows.rule.symmetric;
  const auto seen = mapping.is_block()
                        ? range::merge_block(range::merge_warp(mine, two_sided), two_sided)
                        : range::merge_lanes(mine, 0, place.team_log2, two_sided);
  if (place.length == 0) return;
  const range::Chosen<C> chosen = range::choose(seen, rows.rule);
  if (place.lane == 0) {
    rows.scale[place.row] = chosen.scale;
    rows.zero_point[place.row] = chosen.zero_point;
  }
  uint8_t* const values = rows.values + place.row * rows.length;
  const C zero_point = static_cast<C>(chosen.zero_point);
  const affine::QuantRange<C> limits = rows.rule.range;
  const auto quantize = [&](const auto& grid) {
    for_packs(
        [&](const RowWords<T>& words, int p) { quantize_pack(words, values, place, p, grid); });
  };
  if (!affine::fastest_accepts_range(limits) || !Fastest::accepts(chosen.scale, zero_point)) {
    return quantize(affine::Grid<C>(chosen.scale, zero_point, limits));
  }
  if constexpr (std::is_same_v<C, float>) {
    if (!two_sided && chosen.zero_point % 2 == 0) {
      return quantize(affine::EvenGrid(chosen.scale, zero_point, limits));
    }
  }
  // Also for symmetric scales: elementwise/fast_math.h, 6.
  quantize(affine::FastestOwnGrid<C, false>(chosen.scale, zero_point, limits));
}

// Stage::make(row, args, mapping, place) fills the row's registers, with +0 for missing elements.
// Stage::threads(packs): the most threads of a block. Stage::registers(packs): those of a thread.
template <typename Stage, int packs>
constexpr int kMaxThreads = Stage::threads(packs);
template <typename Stage, int packs>
constexpr int kMinBlocksExact = 65536 / (Stage::registers(packs) * Stage::threads(packs));
template <typename Stage, int packs>
constexpr int kMinBlocks = kMinBlocksExact<Stage, packs> > 1 ? kMinBlocksExact<Stage, packs> : 0;

template <typename Stage, int packs, bool quantized>
__global__ void __launch_bounds__(kMaxThreads<Stage, packs>, kMinBlocks<Stage, packs>)
    rows_kernel(const typename Stage::Params args, const Mapping mapping) {
  using T = typename Stage::T;
  wait_for_last_kernel();
  let_next_kernel_begin();
  const Rows<T>& rows = args.rows;
  const Place place(mapping, rows.count, rows.length);
  RowWords<T> row[packs];
  Stage::template make<packs>(row, args, mapping, place);
  if constexpr (quantized) {
    const bool two_sided = !rows.rule.symmetric;
    auto seen = range::WordExtremes<T>::of_nothing();
#pragma unroll
    for (int p = 0; p < packs; ++p) range::add_words(seen, row[p], two_sided);
    finish_quantized(seen.all(two_sided), rows, mapping, place, [&](const auto& f) {
#pragma unroll
      for (int p = 0; p < packs; ++p) f(row[p], p);
    });
  } else {
    T* const output = rows.output + place.row * rows.length;
#pragma unroll
    for (int p = 0; p < packs; ++p) store_pack(row[p], output, place, p);
  }
}

// Whether rows that start at `data` and lie `stride` elements apart have aligned packs.
template <typename T>
bool is_aligned_rows(const void* data, int64_t stride) {
  return is_aligned(data, 16) && stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

template <typename T>
bool are_whole(const Rows<T>& rows) {
  return rows.length % kPack<T> == 0 && is_aligned_rows<T>(rows.input.data, rows.input.stride) &&
         is_aligned(rows.output, 16) && is_aligned(rows.values, kPack<T>);
}

template <typename T>
bool only_planned_rows(const std::string& name, const Rows<T>& rows, int team, int packs,
                       const char* accumulator) {
  return only_planned([&] {  // shown as threads of a team x elements of a thread
    return cuda_plan<ComputeType<T>>(
        name + (rows.values ? "_quantize_rows" : "_rows"),
        std::to_string(team) + "x" + (packs > 0 ? std::to_string(packs * kPack<T>) : "any"), 0,
        accumulator);
  });
}

template <typename Stage, int packs>
void launch_packs(const typename Stage::Params& args, const Mapping& mapping, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(mapping.grid(args.rows.count)), mapping.threads};
  const bool early = gains_from_early_launch(shape.grid.x) &&
                     is_compiled_for_hopper<&rows_kernel<Stage, packs, true>>();
  const auto kernel =
      args.rows.values ? &rows_kernel<Stage, packs, true> : &rows_kernel<Stage, packs, false>;
  launch_waiting(kernel, early, shape, stream, args, mapping);
}

// Calls launch_packs with the least number of packs, a power of two, that is at least `needed`.
template <typename Stage, int packs = 1>
void launch_needed(int needed, const typename Stage::Params& args, const Mapping& mapping,
                   cudaStream_t stream) {
  if constexpr (packs == kMaxPacks) {
    launch_packs<Stage, packs>(args, mapping, stream);
  } else if (needed <= packs) {
    launch_packs<Stage, packs>(args, mapping, stream);
  } else {
    launch_needed<Stage, 2 * packs>(needed, args, mapping, stream);
  }
}

// Returns false, having launched nothing, if the rows do not fit in the registers.
template <typename Stage>
bool launch_rows(const typename Stage::Params& args, bool whole, const char* name,
                 const char* accumulator, cudaStream_t stream) {
  using T = typename Stage::T;
  const Rows<T>& rows = args.rows;
  if (rows.length > kMaxPacks * kMaxLanes) return false;
  Mapping mapping = map_rows<T>(rows.length, kMaxLanesLog2);
  mapping.whole = whole && are_whole(rows);
  const int64_t needed = divide_up(rows.length, int64_t(kPack<T>) << mapping.team_log2);
  const int packs = 1 << log2_up(needed, 8);
  if (only_planned_rows(name, rows, 1 << mapping.team_log2, packs, accumulator)) return true;
  launch_needed<Stage>(packs, args, mapping, stream);
  return true;
}

}  // namespace baraquant::fused
