// SPDX-License-Identifier: BSD-3-Clause
// Ranges of segments of any form and length, and what follows from them: scales and zero points, or
// a running range. mapping.h explains segments, teams and slices. There are no atomics; a maximum
// is exact, so a segment may be cut into any slices.
//   reduce_runs_kernel     a team reduces a slice of a segment that lies in runs
//   reduce_columns_kernel  a team reduces a slice of the rows of a tile of columns
//   reduce_slices_kernel   merges the slices if there are several
//   count_skipped_kernel   counts a batch that one of several running ranges has left out
#pragma once

#include "frame/cuda_plan.cuh"
#include "machine/pack.cuh"
#include "range/cuda/extremes.cuh"

namespace baraquant::range {

// --- types ---------------------------------------------------------------------------------------

// What is done with the range of each segment.
template <typename T>
struct Outcome {
  using C = ComputeType<T>;
  Rule<C> rule;
  C* scale;             // null means not wanted
  int32_t* zero_point;  // null means not wanted
  C* min = nullptr;     // the running ranges; null means that scales come from the range itself
  C* max = nullptr;
  const uint8_t* enabled = nullptr;  // null means enabled; a byte of 0 means that nothing changes
  C averaging_constant = 0;
  int64_t* skipped_batches = nullptr;  // null means not counted
  uint8_t* skipped = nullptr;  // whether each of several running ranges has left the batch out

  BARAQUANT_HD bool two_sided() const { return min != nullptr || !rule.symmetric; }
  __device__ __forceinline__ bool is_off() const { return enabled && *enabled == 0; }

  __device__ __forceinline__ void write(int64_t segment, Extremes<T> seen) const {
    if (min == nullptr) return write_chosen(segment, choose(seen, rule));
    const MinMax<T> range{static_cast<Key<T>>(seen.lowest), static_cast<Key<T>>(seen.highest)};
    const Observation<C> observation =
        observe<T>({min[segment], max[segment]}, range, averaging_constant);
    min[segment] = observation.range.min;
    max[segment] = observation.range.max;
    if (skipped) {
      skipped[segment] = observation.skipped;
    } else if (skipped_batches && observation.skipped) {
      ++*skipped_batches;  // there is one segment, so no other thread comes here
    }
    if ((scale || zero_point) && observation.range.is_known())
      write_chosen(segment, choose(observation.range, rule));
  }

 private:
  __device__ __forceinline__ void write_chosen(int64_t segment, const Chosen<C>& chosen) const {
    if (scale) scale[segment] = chosen.scale;
    if (zero_point) zero_point[segment] = chosen.zero_point;
  }
};

template <typename T>
struct ReduceParams {
  const T* input;
  Segments segments;
  RunMapping runs;
  ColumnMapping columns;
  bool whole_packs;      // packs are aligned for one access and lie within a run
  Extremes<T>* partial;  // [slices, segments], if there are several slices
  Outcome<T> outcome;

  __device__ __forceinline__ void put(int64_t segment, int64_t slice, int64_t slices,
                                      Extremes<T> seen) const {
    if (slices == 1) return outcome.write(segment, seen);
    partial[slice * segments.count + segment] = seen;
  }
};

// --- kernels -------------------------------------------------------------------------------------

template <typename T>
constexpr int kRunPack = 32 / sizeof(T);
template <typename T>
constexpr int kColumnPack = 16 / sizeof(T);

// Loads a pack that begins at element j of the segment, or the part of it before `end`.
template <typename T, int pack>
__device__ __forceinline__ void load_run(Words<T, pack>& words, const ReduceParams<T>& args,
                                         int64_t segment, int64_t j, int64_t end) {
  const int64_t at = args.segments.at(segment, j);
  if (pack > 1 && j + pack <= end) return load_words(words, args.input, at);
  load_some_words(words, args.input, at, static_cast<int>(min(int64_t(pack), end - j)));
}

// Returns the range of a thread's share of a slice. `pack` is 32 bytes, or 1 element if the ends of
// runs would cut such packs or they are not aligned.
template <typename T, int pack>
__device__ __forceinline__ Extremes<T> reduce_run(const ReduceParams<T>& args,
                                                  const RunPlace& place, bool two_sided) {
  constexpr int kUnroll = run_unroll(pack);
  const T* start = args.input + args.segments.start(place.segment);
  const bool one_run = place.end <= args.segments.run_length.value;
  WordExtremes<T> mine = WordExtremes<T>::of_nothing();
  for (int64_t j = place.begin; j < place.end; j += kUnroll * place.step) {
    Words<T, pack> words[kUnroll];
    if (pack > 1 && one_run && j + (kUnroll - 1) * place.step + pack <= place.end) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) load_words(words[u], start, j + u * place.step);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add_words(mine, words[u], two_sided);
      continue;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t own = j + u * place.step;
      if (own < place.end) load_run(words[u], args, place.segment, own, place.end);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (j + u * place.step < place.end) add_words(mine, words[u], two_sided);
    }
  }
  return mine.all(two_sided);
}

template <typename T, int pack>
__global__ void __launch_bounds__(kReduceThreads) reduce_runs_kernel(const ReduceParams<T> args) {
  if (args.outcome.is_off()) return;
  const bool two_sided = args.outcome.two_sided();
  const RunPlace place =
      place_in_runs(args.segments, args.runs, pack, blockIdx.x, static_cast<int>(threadIdx.x));
  // NB: the same call twice, so that the compiler can drop what the one-sided one does not need.
  Extremes<T> seen =
      two_sided ? reduce_run<T, pack>(args, place, true) : reduce_run<T, pack>(args, place, false);
  if (args.runs.is_block()) {
    seen = merge_block(merge_warp(seen, two_sided), two_sided);
  } else {
    seen = merge_lanes(seen, 0, args.runs.team_log2, two_sided);
  }
  if (place.leads) args.put(place.segment, place.slice, args.runs.slices.value, seen);
}

// The ranges of a thread's columns, over its rows.
template <typename T>
struct ColumnRanges {
  static constexpr int kPack = kColumnPack<T>, kCount = Words<T, kPack>::kCount;
  WordExtremes<T> at[kCount];

  __device__ __forceinline__ ColumnRanges() {
#pragma unroll
    for (int w = 0; w < kCount; ++w) at[w] = WordExtremes<T>::of_nothing();
  }
  __device__ __forceinline__ void add(const Words<T, kPack>& words, bool two_sided) {
#pragma unroll
    for (int w = 0; w < kCount; ++w) at[w].add(words.at[w], two_sided);
  }
  __device__ __forceinline__ void merge_lanes_from(int first_bit, int end_bit, bool two_sided) {
#pragma unroll
    for (int w = 0; w < kCount; ++w) at[w] = merge_lanes(at[w], first_bit, end_bit, two_sided);
  }
  __device__ __forceinline__ Extremes<T> column(int i) const {
    return at[i / kPerWord<T>].element(i % kPerWord<T>);
  }
};

template <typename T>
__device__ __forceinline__ ColumnRanges<T> reduce_rows(const ReduceParams<T>& args,
                                                       const ColumnPlace& place, bool two_sided) {
  constexpr int kPack = kColumnPack<T>;
  const int64_t columns = args.segments.columns;
  const int count = static_cast<int>(min(int64_t(kPack), columns - place.column));
  const int64_t start = args.segments.start(place.block);
  const int64_t end = count > 0 ? place.end : 0;
  ColumnRanges<T> mine;
  for (int64_t row = place.first; row < end; row += kRowUnroll * place.step) {
    Words<T, kPack> words[kRowUnroll];
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      const int64_t own = row + u * place.step;
      if (own >= end) continue;
      const int64_t at = (start + own) * columns + place.column;
      if (args.whole_packs) {
        load_words(words[u], args.input, at);
      } else {  // what stands in for columns that do not exist is dropped later
        load_some_words(words[u], args.input, at, count);
      }
    }
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      if (row + u * place.step < end) mine.add(words[u], two_sided);
    }
  }
  return mine;
}

template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns_kernel(const ReduceParams<T> args) {
  if (args.outcome.is_off()) return;
  constexpr int kPack = kColumnPack<T>;
  const ColumnMapping& m = args.columns;
  const bool two_sided = args.outcome.two_sided();
  const int64_t columns = args.segments.columns;
  const ColumnPlace place =
      place_in_columns(args.segments, m, kPack, blockIdx.x, static_cast<int>(threadIdx.x));
  ColumnRanges<T> mine = reduce_rows(args, place, two_sided);
  mine.merge_lanes_from(m.lanes_log2, min(m.team_log2, kWarpLog2), two_sided);
  const auto put = [&](int64_t column, Extremes<T> seen) {
    if (place.block < m.blocks && column < columns) {
      args.put(place.block * columns + column, place.slice, m.slices.value, seen);
    }
  };
  if (!m.is_block()) {
    if (place.row_lane > 0) return;
#pragma unroll
    for (int i = 0; i < kPack; ++i) put(place.column + i, mine.column(i));
    return;
  }
  // The first threads of each warp hold the ranges over its rows.
  constexpr int kWarps = kReduceThreads / kWarp;
  static_assert(kWarp * kPack <= kReduceThreads, "a thread for each column of a tile");
  __shared__ Extremes<T> of_warps[kWarps][kWarp * kPack];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarp >> m.lanes_log2 == 0) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      of_warps[thread / kWarp][place.lane * kPack + i] = mine.column(i);
    }
  }
  __syncthreads();
  if (thread >= kPack << m.lanes_log2) return;
  Extremes<T> seen = of_warps[0][thread];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) seen.merge(of_warps[w][thread], two_sided);
  put(place.tile + thread, seen);
}

// A block takes 1 << lanes_log2 segments and divides its threads among them.
constexpr int kSliceThreads = 512;

template <typename T>
__global__ void __launch_bounds__(kSliceThreads)
    reduce_slices_kernel(const Extremes<T>* partial, int64_t segments, int64_t slices,
                         int lanes_log2, const Outcome<T> outcome) {
  if (outcome.is_off()) return;
  const bool two_sided = outcome.two_sided();
  const int thread = static_cast<int>(threadIdx.x), lane = thread & ((1 << lanes_log2) - 1);
  const int64_t segment = (static_cast<int64_t>(blockIdx.x) << lanes_log2) + lane;
  Extremes<T> mine = Extremes<T>::of_nothing();
  if (segment < segments) {
#pragma unroll 4
    for (int64_t slice = thread >> lanes_log2; slice < slices;
         slice += kSliceThreads >> lanes_log2) {
      mine.merge(partial[slice * segments + segment], two_sided);
    }
  }
  mine = merge_lanes(mine, lanes_log2, kWarpLog2, two_sided);
  __shared__ Extremes<T> of_warps[kSliceThreads / kWarp][kWarp];
  if (thread % kWarp == lane) of_warps[thread / kWarp][lane] = mine;
  __syncthreads();
  if (thread != lane || segment >= segments) return;
  for (int w = 1; w < kSliceThreads / kWarp; ++w) mine.merge(of_warps[w][lane], two_sided);
  outcome.write(segment, mine);
}

// Several blocks have updated the running ranges, so a separate kernel of one block looks whether
// any of them has left the batch out.
constexpr int kCountThreads = 1024;

template <typename T>
__global__ void __launch_bounds__(kCountThreads)
    count_skipped_kernel(int64_t segments, const Outcome<T> outcome) {
  if (outcome.is_off()) return;
  bool any = false;
  for (int64_t s = threadIdx.x; s < segments; s += kCountThreads) any |= outcome.skipped[s] != 0;
  any = __syncthreads_or(any);
  if (any && threadIdx.x == 0) ++*outcome.skipped_batches;
}

// --- launchers -----------------------------------------------------------------------------------

template <typename T>
ReduceParams<T> plan_reduce(const T* input, const Segments& s, const Outcome<T>& outcome,
                            const Chip& chip) {
  ReduceParams<T> args{input, s, {}, {}, false, nullptr, outcome};
  const bool aligned = is_aligned(input, 16);
  if (s.in_columns) {
    args.whole_packs = aligned && s.columns % kColumnPack<T> == 0;
    args.columns = map_columns(s, kColumnPack<T>, chip);
    return args;
  }
  // Packs of a row may start at any multiple of 16 bytes; those of runs must not pass their ends.
  const bool is_row = s.count == 1 || are_rows(s);
  args.whole_packs = aligned && (is_row ? start_at_multiples(s, 16 / sizeof(T))
                                        : s.run_length.value % kRunPack<T> == 0);
  args.runs = map_runs(s, args.whole_packs ? kRunPack<T> : 1, chip);
  return args;
}

// Returns how many partial ranges the launch needs room for.
template <typename T>
int64_t partials_of(const ReduceParams<T>& args) {
  const Divisor& slices = args.segments.in_columns ? args.columns.slices : args.runs.slices;
  return slices.value > 1 ? slices.value * args.segments.count : 0;
}

// Whether skipped batches need a byte for each segment, and a kernel to count them.
template <typename T>
bool counts_apart(const ReduceParams<T>& args) {
  return args.outcome.skipped_batches && args.segments.count > 1;
}

template <typename T>
KernelPlan plan_of(const ReduceParams<T>& args) {
  const std::string name = args.outcome.min ? "observe" : "choose_qparams";
  const int pack = args.segments.in_columns ? kColumnPack<T> : args.whole_packs ? kRunPack<T> : 1;
  int64_t scratch = partials_of(args) * static_cast<int64_t>(sizeof(Extremes<T>));
  if (counts_apart(args)) scratch += args.segments.count;
  return cuda_plan<ComputeType<T>>(name + (args.segments.in_columns ? "_columns" : "_runs"),
                                   std::to_string(kReduceThreads) + "x" + std::to_string(pack),
                                   scratch);
}

template <typename T>
bool only_planned_as(const ReduceParams<T>& args) {
  const auto note = [](const char* name, int threads) {
    only_planned([&] { return cuda_plan<ComputeType<T>>(name, std::to_string(threads)); });
  };
  if (!only_planned([&] { return plan_of(args); })) return false;
  if (partials_of(args) > 0) note("merge_slices", kSliceThreads);
  if (counts_apart(args)) note("count_skipped", kCountThreads);
  return true;
}

template <typename T>
void reduce_cuda(const ReduceParams<T>& args, cudaStream_t stream) {
  const int64_t segments = args.segments.count;
  if (only_planned_as(args)) return;
  int64_t slices = 0;
  if (args.segments.in_columns) {
    slices = args.columns.slices.value;
    const unsigned grid = static_cast<unsigned>(args.columns.grid());
    reduce_columns_kernel<T><<<grid, kReduceThreads, 0, stream>>>(args);
  } else {
    slices = args.runs.slices.value;
    const unsigned grid = static_cast<unsigned>(args.runs.grid(segments));
    const auto kernel =
        args.whole_packs ? &reduce_runs_kernel<T, kRunPack<T>> : &reduce_runs_kernel<T, 1>;
    kernel<<<grid, kReduceThreads, 0, stream>>>(args);
  }
  if (slices > 1) {
    const int lanes_log2 = log2_up(segments, kWarpLog2);
    const int64_t grid = divide_up(segments, int64_t(1) << lanes_log2);
    reduce_slices_kernel<T><<<static_cast<unsigned>(grid), kSliceThreads, 0, stream>>>(
        args.partial, segments, slices, lanes_log2, args.outcome);
  }
  if (counts_apart(args)) {
    count_skipped_kernel<T><<<1, kCountThreads, 0, stream>>>(segments, args.outcome);
  }
}

}  // namespace baraquant::range
