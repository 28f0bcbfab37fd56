// SPDX-License-Identifier: BSD-3-Clause
// The gradient of the scale over short segments that lie one after the other, such as groups. The
// lanes of a team are neighbours, so that a team alone would read pieces of 16 to 256 bytes, far
// apart from those of the next. Instead a warp copies all segments of its teams to shared memory,
// each lane 16 bytes beside its neighbour's, before a team sums its own.
#pragma once

#include "affine/cuda/gradient_sums.cuh"

namespace baraquant::affine {

constexpr int kShortThreads = 64;  // few, because a block lasts as long as its slowest warp
constexpr int kShortSteps = 4;     // packs that a lane copies, and at most computes

// Whether a warp holds the segments of all of its teams: a team of several threads has 32 elements
// for each of them at most (team_size).
inline bool are_short(const Segments& segments, int team) {
  static_assert(kShortSteps * kPackLanes == 32);
  return segments.slices == 1 && team < 32;
}

// Needs p.aligned, p.contiguous, segments of whole packs, and are_short().
template <typename T, bool zero_point_gradient>
__global__ void __launch_bounds__(kShortThreads,
                                  kGradientBlocks<T, zero_point_gradient>*(kMaxTeam /
                                                                           kShortThreads))
    sum_short_kernel(const GradientParams<T> p) {
  using C = ComputeType<T>;
  using Copied = Words<T, kPackLanes>;
  constexpr int kWarps = kShortThreads / 32;
  __shared__ Copied all_dy[kWarps][kShortSteps * 32], all_x[kWarps][kShortSteps * 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  auto& dy = all_dy[warp];
  auto& x = all_x[warp];
  const int64_t warp_number = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int teams = 32 / p.team, packs = static_cast<int>(p.segments.length) / kPackLanes;

  const int64_t first = warp_number * teams * packs * kPackLanes;
  const int64_t left = (p.segments.count - warp_number * teams) * packs;
  const int count = static_cast<int>(max(min(int64_t(teams * packs), left), int64_t(0)));
#pragma unroll
  for (int i = 0; i < kShortSteps; ++i) {
    const int at = i * 32 + lane;
    if (at < count) {
      copy_words_async(dy[at], p.args.dy + first + at * kPackLanes);
      copy_words_async(x[at], p.args.x + first + at * kPackLanes);
    }
  }
  commit_copies();

  const int member = lane & (p.team - 1), team = lane / p.team;
  const int64_t segment = warp_number * teams + team;
  const bool some = segment < p.segments.count;
  const SegmentGrid<C> own(p, some ? segment : 0);
  ThreadSums<kPackLanes, zero_point_gradient> lanes;
  wait_for_copies<0>();
  __syncwarp();
  const int end = some ? (team + 1) * packs : 0;
  for (int at = team * packs + member; at < end; at += p.team) {
    const GradientPack<T, kPackLanes> pack{dy[at], x[at]};
    const auto dx = add_pack(pack, kPackLanes, own.fast, own, p.q.range, lanes);
    store_words(dx, p.args.dx, first + at * kPackLanes);
  }
  const bool writes = some && member == 0;
  const double sum = sum_team(lanes.scale, p.team);
  if (writes) p.args.scale_gradient[segment] = static_cast<C>(sum);
  if constexpr (zero_point_gradient) {
    const double zero_point_sum = sum_team(lanes.zero_point, p.team);
    if (writes) p.args.zero_point_gradient[segment] = static_cast<C>(zero_point_sum);
  }
}

}  // namespace baraquant::affine
