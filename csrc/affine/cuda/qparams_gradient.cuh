// SPDX-License-Identifier: BSD-3-Clause
// The fused backward of a learned scale on the GPU: one pass over dy and x gives dx and the sums
// for each scale (and zero point), in the order of Note [Order of the sums] in segments.h. There
// are no atomics, so every execution gives the same bits. A team is the threads that share a slice.
//   gradient_runs.cuh     a team sums a slice of a segment that lies in runs
//   gradient_short.cuh    a warp holds the short segments of its teams, which lie side by side
//   gradient_columns.cuh  a block sums a slice of rows, in which each column is a segment
//   sum_slices_kernel     adds up the slices if there are several
#pragma once

#include "affine/cuda/gradient_columns.cuh"
#include "affine/cuda/gradient_runs.cuh"
#include "affine/cuda/gradient_short.cuh"
#include "frame/cuda_plan.cuh"

namespace baraquant::affine {

// Blocks of y = 0 sum for the scales, those of y = 1 for the zero points.
template <typename T>
__global__ void __launch_bounds__(kMaxTeam)
    sum_slices_kernel(const GradientParams<T> p, const int team) {
  const bool of_scale = blockIdx.y == 0;
  const double* partial = of_scale ? p.partial.scale : p.partial.zero_point;
  auto* result = of_scale ? p.args.scale_gradient : p.args.zero_point_gradient;
  const int64_t segments = p.segments.count, slices = p.segments.slices;
  const int team_log2 = __ffs(team) - 1;
  const int64_t s = (static_cast<int64_t>(blockIdx.x) * kMaxTeam + threadIdx.x) >> team_log2;
  const int member = static_cast<int>(threadIdx.x) & (team - 1);
  double lanes[kPackLanes] = {};
  if (s < segments) {
#pragma unroll 4
    for (int64_t j = member * kPackLanes; j < slices; j += team * kPackLanes) {
#pragma unroll
      for (int i = 0; i < kPackLanes; ++i) {
        if (j + i < slices) lanes[i] += partial[s * slices + j + i];
      }
    }
  }
  const double sum = sum_team(lanes, team);
  if (s < segments && member == 0) result[s] = static_cast<ComputeType<T>>(sum);
}

// --- launchers -----------------------------------------------------------------------------------

inline unsigned blocks_for(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

// While a call is only planned (frame/plan.h), adds the kernel that adds up the slices to the plan.
template <typename T>
void note_sums_of_slices(const Segments& s) {
  if (s.slices == 1) return;
  only_planned([&] {
    return cuda_plan<ComputeType<T>>("sum_slices", std::to_string(team_size(s.slices)), 0,
                                     "float64");
  });
}

template <typename T, bool zero_point_gradient>
void launch_gradient(const GradientParams<T>& p, cudaStream_t stream) {
  const Segments& s = p.segments;
  if (only_planned([&] {
        const int64_t sums = s.slices > 1 ? s.slices * s.count * (zero_point_gradient ? 2 : 1) : 0;
        return cuda_plan<ComputeType<T>>(
            s.in_columns ? "qparams_gradient_columns" : "qparams_gradient_runs",
            std::to_string(s.in_columns ? kRowSlice : kRunSlice),
            sums * static_cast<int64_t>(sizeof(double)), "float64");
      })) {
    return note_sums_of_slices<T>(s);
  }
  if (s.in_columns) {
    using G = ColumnGeometry<T>;
    const int64_t tiles = (s.columns + G::kTileColumns - 1) / G::kTileColumns;
    const auto kernel = p.aligned ? &sum_columns_kernel<T, zero_point_gradient, true>
                                  : &sum_columns_kernel<T, zero_point_gradient, false>;
    kernel<<<static_cast<unsigned>(tiles * s.slices * (s.count / s.columns)), G::kThreads, 0,
             stream>>>(p);
  } else {
    const bool whole = p.aligned && s.length % kPackLanes == 0;
    const bool is_short = whole && p.contiguous && are_short(s, p.team);
    const int threads = is_short ? kShortThreads : kMaxTeam;
    const auto kernel = is_short ? &sum_short_kernel<T, zero_point_gradient>
                        : whole  ? &sum_packs_kernel<T, zero_point_gradient>
                                 : &sum_runs_kernel<T, zero_point_gradient>;
    kernel<<<blocks_for(s.count * s.slices, threads / p.team), threads, 0, stream>>>(p);
  }
  if (s.slices == 1) return;
  const int team = team_size(s.slices);
  const dim3 blocks(blocks_for(s.count, kMaxTeam / team), zero_point_gradient ? 2 : 1);
  sum_slices_kernel<<<blocks, kMaxTeam, 0, stream>>>(p, team);
}

// partial: `slices` doubles for each segment, and as many again if the zero point has a gradient.
template <typename T>
void qparams_gradient_cuda(const QparamsGradientParams<T>& args, const Qparams<ComputeType<T>>& q,
                           const Segments& segments, double* partial, cudaStream_t stream) {
  GradientParams<T> p{args,
                      q,
                      segments,
                      Divisor(segments.slices),
                      {partial, nullptr},
                      team_size(segments.length),
                      !segments.last_is_shorter && segments.length == segments.run_length.value,
                      false,
                      fastest_accepts_range(q.range)};
  if (partial) p.partial.zero_point = partial + segments.count * segments.slices;
  const int64_t pack = segments.in_columns ? ColumnGeometry<T>::kPack : kPackLanes;
  const int64_t run = segments.in_columns ? segments.columns : segments.run_length.value;
  const bool whole_packs = run % pack == 0 && (segments.in_columns || !segments.last_is_shorter ||
                                               segments.axis % pack == 0);
  p.aligned = (q.map.is_single() || whole_packs) && is_aligned(args.dy, 16) &&
              is_aligned(args.x, 16) && is_aligned(args.dx, 16);
  if (args.zero_point_gradient) {
    launch_gradient<T, true>(p, stream);
  } else {
    launch_gradient<T, false>(p, stream);
  }
}

}  // namespace baraquant::affine
