// SPDX-License-Identifier: BSD-3-Clause
// The gradient of the scale over segments that lie in runs: a team of threads sums a slice of a
// segment (gradient_sums.cuh).
//   sum_packs_kernel  every pack is whole
//   sum_runs_kernel   any length and alignment
// gradient_short.cuh has short segments that lie one after the other.
#pragma once

#include "affine/cuda/gradient_sums.cuh"

namespace baraquant::affine {

// A thread's part of a slice: kPackLanes neighbours, and so on in steps of the team.
struct SlicePart {
  int64_t number;   // of the slice, among those of all segments
  int64_t segment;  // 0 beyond the last slice
  int64_t at;       // where the next element lies
  int member;       // number of the thread in its team
  int left;         // elements of the slice from the next one on; may be negative
  int left_in_run;  // elements of the run from the next one on, if they are fewer than kFar

  template <typename T>
  __device__ __forceinline__ explicit SlicePart(const GradientParams<T>& p) {
    const Segments& segments = p.segments;
    const int team_log2 = __ffs(p.team) - 1;
    number = (static_cast<int64_t>(blockIdx.x) * kMaxTeam + threadIdx.x) >> team_log2;
    member = static_cast<int>(threadIdx.x) & (p.team - 1);
    const bool some = number < segments.count * segments.slices;
    segment = some ? p.slices.divide(number) : 0;
    const int64_t slice = some ? number - segment * segments.slices : 0;
    const int64_t j = slice * kRunSlice + member * kPackLanes;
    int64_t start = segment * segments.length, length = segments.length;
    left_in_run = kFar;
    if (!p.contiguous) {
      segments.span(segment, start, length);
      const int64_t run = segments.run_of(j);
      start += run * run_gap(segments);
      left_in_run = within_far((run + 1) * segments.run_length.value - j);
    }
    at = start + j;
    left = some ? static_cast<int>(min((slice + 1) * kRunSlice, length) - j) : 0;
  }
  // Moves on by `step` elements of the segment.
  __device__ __forceinline__ void advance(const Segments& segments, int step) {
    at += step, left -= step, left_in_run -= step;
    if (left_in_run > 0) return;
    const int64_t runs = segments.run_length.divide_small(-left_in_run) + 1;
    at += runs * run_gap(segments);
    left_in_run = within_far(runs * segments.run_length.value + left_in_run);
  }

 private:
  // More than the elements of a slice and a step, so that no thread gets there.
  static constexpr int kFar = 1 << 30;
  __device__ __forceinline__ static int within_far(int64_t count) {
    return static_cast<int>(min(count, int64_t(kFar)));
  }
  // From the end of a run to the segment's next one.
  __device__ __forceinline__ static int64_t run_gap(const Segments& segments) {
    return (segments.count - 1) * segments.run_length.value;
  }
};

// Adds up the lanes of the team and writes the sums of its slice. NB: all threads of the block must
// call it.
template <typename T, bool zero_point_gradient>
__device__ __forceinline__ void finish_slice(
    const GradientParams<T>& p, const ThreadSums<kPackLanes, zero_point_gradient>& lanes,
    const SlicePart& part) {
  const int64_t slices = p.segments.slices;
  const bool writes = part.member == 0 && part.number < p.segments.count * slices;
  const double scale = sum_team(lanes.scale, p.team);
  if (writes) write_sum(scale, part.number, slices, p.partial.scale, p.args.scale_gradient);
  if constexpr (zero_point_gradient) {
    const double zero_point = sum_team(lanes.zero_point, p.team);
    if (writes) {
      write_sum(zero_point, part.number, slices, p.partial.zero_point, p.args.zero_point_gradient);
    }
  }
}

// Needs p.aligned, and segments of whole packs.
template <typename T, bool zero_point_gradient>
__global__ void __launch_bounds__(kMaxTeam, kGradientBlocks<T, zero_point_gradient>)
    sum_packs_kernel(const GradientParams<T> p) {
  using Ahead = PacksAhead<T, kPackLanes, 1, kMaxTeam>;
  __shared__ typename Ahead::Memory memory;
  Ahead ahead(memory);
  const int step = p.team * kPackLanes;
  SlicePart part(p), copied = part;
  const auto copy_next = [&] {
    if (copied.left > 0) ahead.copy(0, p.args.dy + copied.at, p.args.x + copied.at);
    ahead.done();
    copied.advance(p.segments, step);
  };
#pragma unroll
  for (int i = 0; i < Ahead::kSteps; ++i) copy_next();
  const SegmentGrid<ComputeType<T>> own(p, part.segment);
  ThreadSums<kPackLanes, zero_point_gradient> lanes;
  for (; part.left > 0; part.advance(p.segments, step)) {
    const GradientPack<T, kPackLanes> pack = ahead.take();
    copy_next();
    const auto dx = add_pack(pack, kPackLanes, own.fast, own, p.q.range, lanes);
    store_words(dx, p.args.dx, part.at);
  }
  finish_slice(p, lanes, part);
}

// Calls f(i, at) with the number in the pack and the place of each element of the pack.
template <typename F>
__device__ __forceinline__ void for_each_element(const Segments& segments, SlicePart part,
                                                 const F& f) {
#pragma unroll
  for (int i = 0; i < kPackLanes; ++i) {
    if (part.left <= 0) return;
    f(i, part.at);
    part.advance(segments, 1);
  }
}

template <typename T, bool zero_point_gradient>
__global__ void __launch_bounds__(kMaxTeam, kGradientBlocks<T, zero_point_gradient>)
    sum_runs_kernel(const GradientParams<T> p) {
  SlicePart part(p);
  const SegmentGrid<ComputeType<T>> own(p, part.segment);
  ThreadSums<kPackLanes, zero_point_gradient> lanes;
  for (; part.left > 0; part.advance(p.segments, p.team * kPackLanes)) {
    const bool whole = p.aligned && part.left >= kPackLanes;
    GradientPack<T, kPackLanes> pack{};
    if (whole) {
      load_words(pack.dy, p.args.dy, part.at);
      load_words(pack.x, p.args.x, part.at);
    } else {
      for_each_element(p.segments, part, [&](int i, int64_t at) {
        pack.dy.set(i, p.args.dy[at]);
        pack.x.set(i, p.args.x[at]);
      });
    }
    const int count = min(kPackLanes, part.left);
    const auto dx = add_pack(pack, count, own.fast, own, p.q.range, lanes);
    if (whole) {
      store_words(dx, p.args.dx, part.at);
    } else {
      for_each_element(p.segments, part, [&](int i, int64_t at) { p.args.dx[at] = dx.get(i); });
    }
  }
  finish_slice(p, lanes, part);
}

}  // namespace baraquant::affine
