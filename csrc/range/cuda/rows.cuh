// SPDX-License-Identifier: BSD-3-Clause
// Computes scales, zero points and the result while the input is read once: a team of threads
// (mapping.h) keeps a row in its registers while it finds the row's range. Load, reduce, choose,
// compute, store. As in elementwise/cuda.cuh a thread's packs are 32 bytes; all of them are loaded
// before the first is used. If a row ends within a pack, is not aligned, or has a scale that
// FastGrid does not accept, the threads instead read it again (from the cache), element by element.
#pragma once

#include "elementwise/cuda.cuh"
#include "frame/cuda_plan.cuh"
#include "machine/early_launch.cuh"
#include "range/cuda/extremes.cuh"

namespace baraquant::range {

// --- types ---------------------------------------------------------------------------------------

template <typename Op>
struct RowsParams {
  const typename Op::First* input;
  typename Op::Result* result;
  uint8_t* mask;
  Segments segments;  // each is one run of neighbours, and covers whole bytes of a mask
  Rule<typename Op::C> rule;
  typename Op::C* scale;  // null means not wanted
  int32_t* zero_point;    // null means not wanted
  RowMapping mapping = {};
  bool whole_packs = false;  // every pack is whole and aligned
  bool fast_range = false;   // FastestGrid accepts the range
};

template <typename Op>
constexpr int kRowPack = affine::Geometry<Op, affine::ScaleAccess::kOne>::kPack;
template <typename Op>
using RowWords = Words<typename Op::First, kRowPack<Op>>;

constexpr int kMaxRowThreads = 1024;  // threads of a block, which leaves 64 registers for each
// A division of doubles, or the bits of a mask, leave no room for four packs.
template <typename Op>
constexpr int kMaxRowPacks =
    sizeof(typename Op::C) == 8 || Op::kMask == affine::Mask::kWrite ? 2 : 4;

// --- kernels -------------------------------------------------------------------------------------

// Loads the thread's share of the row. Packs beyond its end become zeros, which lie in every range
// that a scale is chosen from.
template <typename Op, int packs>
__device__ __forceinline__ void load_row(RowWords<Op> (&row)[packs], const RowsParams<Op>& args,
                                         const RowPlace& place) {
  constexpr int kPack = kRowPack<Op>;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (place.has(p, kPack)) {
      load_words(row[p], args.input, place.start + place.offset(p, kPack));
    } else {
      row[p].fill({});
    }
  }
}

// Returns the range of the thread's share of the row.
template <typename Op, int packs>
__device__ __forceinline__ Extremes<typename Op::First> find_own_range(
    const RowWords<Op> (&row)[packs], const RowsParams<Op>& args, const RowPlace& place,
    bool two_sided) {
  using T = typename Op::First;
  WordExtremes<T> mine = WordExtremes<T>::of_nothing();
  if (args.whole_packs) {
#pragma unroll
    for (int p = 0; p < packs; ++p) add_words(mine, row[p], two_sided);
  } else {
#pragma unroll 4
    for (int i = place.lane; i < place.length; i += place.team) {
      Words<T, 1> word;
      word.fill(args.input[place.start + i]);
      add_words(mine, word, two_sided);
    }
  }
  return mine.all(two_sided);
}

// Merges the ranges of a team's threads. Every thread of the team gets the result.
template <typename T>
__device__ __forceinline__ Extremes<T> merge_team(Extremes<T> mine, const RowMapping& mapping,
                                                  ClusterMail<T>& mail, bool two_sided) {
  if (!mapping.is_block) return merge_lanes(mine, 0, mapping.team_log2, two_sided);
  const Extremes<T> of_block = merge_block(merge_warp(mine, two_sided), two_sided);
  if (mapping.blocks_log2 == 0) return of_block;
  return merge_cluster(of_block, mail, 1 << mapping.blocks_log2, two_sided);
}

template <typename Op, int packs, typename G>
__device__ __forceinline__ void write_row(const RowWords<Op> (&row)[packs],
                                          const RowsParams<Op>& args, const RowPlace& place,
                                          const G& grid) {
  constexpr int kPack = kRowPack<Op>;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int64_t begin = place.start + place.offset(p, kPack);
    affine::Packs<Op, kPack> pack;
    Pack<typename Op::Result, kPack> result;
    pack.first = row[p];
    pack.bits = 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) result.at[i] = pack.apply(i, grid);
    const int count = place.has(p, kPack) ? kPack : 0;
    if (count > 0) store(result, args.result, begin, kPack, true);
    if constexpr (Op::kMask == affine::Mask::kWrite) {
      affine::write_bits<kPack>(pack.bits, args.mask, begin, count);
    }
  }
}

// Writes the thread's share element by element. A byte of the mask belongs to one thread.
template <typename Op>
__device__ __forceinline__ void write_elements(const RowsParams<Op>& args, const RowPlace& place,
                                               const affine::Grid<typename Op::C>& grid) {
  constexpr bool kWritesMask = Op::kMask == affine::Mask::kWrite;
  constexpr int kShare = kWritesMask ? 8 : 1;
  for (int at = place.lane * kShare; at < place.length; at += place.team * kShare) {
    const int end = min(at + kShare, place.length);
    unsigned bits = 0;
    for (int i = at; i < end; ++i) {
      bool bit = false;
      args.result[place.start + i] = Op::apply(args.input[place.start + i], {}, bit, grid);
      bits |= static_cast<unsigned>(bit) << (i - at);
    }
    if (kWritesMask) args.mask[(place.start + at) / 8] = static_cast<uint8_t>(bits);
  }
}

// A block has at most max_threads threads, and at least `blocks` of them must fit on a
// multiprocessor. This decides how many registers a thread may use.
template <typename Op, int packs, int max_threads = kMaxRowThreads, int blocks = 0>
__global__ void __launch_bounds__(max_threads, blocks) rows_kernel(const RowsParams<Op> args) {
  using C = typename Op::C;
  using Fastest = affine::FastestGrid<C>;
  wait_for_last_kernel();
  let_next_kernel_begin();
  const RowMapping& mapping = args.mapping;
  __shared__ ClusterMail<typename Op::First> mail;
  if (mapping.blocks_log2 > 0) announce_to_cluster(mail, 1 << mapping.blocks_log2);
  const RowPlace place =
      place_in_row(args.segments, mapping, blockIdx.x, static_cast<int>(threadIdx.x));
  RowWords<Op> row[packs];
  if (args.whole_packs) load_row<Op, packs>(row, args, place);

  const bool two_sided = !args.rule.symmetric;
  const auto mine = two_sided ? find_own_range<Op, packs>(row, args, place, true)
                              : find_own_range<Op, packs>(row, args, place, false);
  const auto chosen = choose(merge_team(mine, mapping, mail, two_sided), args.rule);
  if (place.leads()) {
    if (args.scale) args.scale[place.row] = chosen.scale;
    if (args.zero_point) args.zero_point[place.row] = chosen.zero_point;
  }

  // NB: write_row may exchange bits of the mask between the threads of a warp, but only for double,
  // whose grid accepts every scale, so that all teams of a warp take the same branch.
  const C zero_point = static_cast<C>(chosen.zero_point);
  const affine::QuantRange<C> range = args.rule.range;
  if (!args.whole_packs || !args.fast_range || !Fastest::accepts(chosen.scale, zero_point)) {
    write_elements(args, place, affine::Grid<C>(chosen.scale, zero_point, range));
  } else if (two_sided) {
    write_row<Op, packs>(row, args, place,
                         affine::FastestOwnGrid<C, false>(chosen.scale, zero_point, range));
  } else {
    write_row<Op, packs>(row, args, place,
                         affine::FastestOwnGrid<C, true>(chosen.scale, zero_point, range));
  }
}

// --- launchers -----------------------------------------------------------------------------------

inline Chip chip_of(int device) {
  Chip chip;
  cudaDeviceGetAttribute(&chip.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return chip;
}

// Fills in mapping, whole_packs and fast_range, which the caller leaves out. Returns false, having
// launched nothing, if the rows do not fit in the registers.
template <typename Op>
bool rows_cuda(RowsParams<Op> args, int device, cudaStream_t stream) {
  constexpr int kPack = kRowPack<Op>;
  const Segments& s = args.segments;
  args.whole_packs = is_aligned(args.input, 16) &&
                     is_aligned(args.result, kPack * sizeof(typename Op::Result)) &&
                     s.length % kPack == 0 && start_at_multiples(s, kPack);
  args.fast_range = affine::fastest_accepts_range(args.rule.range);
  Chip chip = chip_of(device);
  const bool is_hopper = is_compiled_for_hopper<&rows_kernel<Op, 1>>();
  chip.clusters = s.length > kMaxPacksOfBlock * kPack && is_hopper;
  RowLimits limits{kMaxRowPacks<Op>};
  limits.copies = sizeof(typename Op::Result) >= sizeof(typename Op::First);
  if (Op::kMask == affine::Mask::kWrite && kPack < 8) limits.min_team = 8 / kPack;
  args.mapping = map_rows(s.count, s.length, kPack, limits, chip);
  if (args.mapping.packs == 0) return false;
  if (only_planned([&] {
        const RowMapping& m = args.mapping;  // shown as threads of a team x elements of a thread
        const int team = m.is_block ? m.threads << m.blocks_log2 : 1 << m.team_log2;
        return cuda_plan<typename Op::C>(
            std::string("dynamic_") + Op::kName + "_rows",
            std::to_string(team) + "x" + std::to_string(m.packs * kPack));
      })) {
    return true;
  }

  const LaunchShape shape{static_cast<unsigned>(args.mapping.grid(s.count)), args.mapping.threads,
                          0, 1u << args.mapping.blocks_log2};
  auto kernel = args.mapping.packs == 1 ? &rows_kernel<Op, 1> : &rows_kernel<Op, 2>;
  if constexpr (kMaxRowPacks<Op> == 4) {
    if (args.mapping.packs == 4) kernel = &rows_kernel<Op, 4>;
  }
  const bool early = is_hopper && gains_from_early_launch(shape.grid.x);
  launch_waiting(kernel, early, shape, stream, args);
  return true;
}

}  // namespace baraquant::range
