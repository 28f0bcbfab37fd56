// SPDX-License-Identifier: BSD-3-Clause
// The fused backward of a learned scale on the CPU: one pass over dy and x gives dx and the sums
// for each scale (and zero point), in the order of Note [Order of the sums] in segments.h, which
// also explains segments, slices and lanes.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "elementwise/cpu.h"
#include "elementwise/elementwise_ops.h"
#include "elementwise/qparams.h"
#include "granularity/segments.h"
#include "machine/cpu_isa.h"

namespace baraquant::affine {

constexpr int64_t kColumnTile = 256;
constexpr int64_t kShares = 1024;  // elements whose shares are computed before they are added

// A task's running sums: one for each lane, and for each column too if segments lie in columns; and
// the shares of the elements that it is at. NB: they are kept in C, and widened by a loop of its
// own: the compiler does not turn a loop that does both into vectors.
template <typename C>
struct LaneSums {
  alignas(64) double scale[kMaxLanes];
  alignas(64) double zero_point[kMaxLanes];
  alignas(64) C scale_shares[kShares];
  alignas(64) C zero_point_shares[kShares];
};
static_assert(kMaxLanes >= kRowLanes * kColumnTile && kShares >= kColumnTile);

// Writes dx and the shares of `count` neighbours in memory; those of the zero point if kBoth.
template <bool kBoth, typename T, typename GridAt>
BARAQUANT_HD void write_shares(const QparamsGradientParams<T>& args, int64_t at, int64_t count,
                               const GridAt& grid_at, LaneSums<ComputeType<T>>& sums) {
  using C = ComputeType<T>;
  const T* __restrict const dy = args.dy + at;
  const T* __restrict const x = args.x + at;
  T* __restrict const dx = args.dx + at;
  C* __restrict const scale = sums.scale_shares;
  C* __restrict const zero_point = sums.zero_point_shares;
  const GridAt grids = grid_at;
  for (int64_t k = 0; k < count; ++k) {
    C gradient;
    const auto share = QparamsGradient<T>::apply(dy[k], x[k], gradient, grids(k));
    dx[k] = from_compute<T>(gradient);
    scale[k] = share.scale;
    if constexpr (kBoth) zero_point[k] = share.zero_point;
  }
}

template <typename C>
BARAQUANT_HD void add(const C* __restrict shares, int64_t count, double* __restrict sums) {
#pragma GCC unroll 1  // the compiler turns a loop of a known length into vectors only if it is one
  for (int64_t k = 0; k < count; ++k) sums[k] += static_cast<double>(shares[k]);
}

// Adds shares k, k + 1, ... to the sums of lane, lane + 1, ...
template <bool kBoth, typename C>
BARAQUANT_HD void add_shares(LaneSums<C>& sums, int64_t k, int64_t count, int64_t lane) {
  add(sums.scale_shares + k, count, sums.scale + lane);
  if constexpr (kBoth) add(sums.zero_point_shares + k, count, sums.zero_point + lane);
}

inline double sum_slices(const double* partial, int64_t slices, std::vector<double>& lanes) {
  lanes.assign(kPackLanes * team_size(slices), 0.0);
  for (int64_t i = 0; i < slices; ++i) lanes[i % lanes.size()] += partial[i];
  return sum_pairs(lanes.data(), static_cast<int>(lanes.size()));
}

template <typename T>
class QparamsGradientCpu {
 public:
  using C = ComputeType<T>;
  QparamsGradientCpu(const QparamsGradientParams<T>& args, const Qparams<C>& q)
      : args_(args), q_(q), segments_(make_segments(q.map)), isa_(cpu_isa()) {}

  void run() {
    if (segments_.slices > 1) partial_scale_.resize(segments_.count * segments_.slices);
    partial_zero_point_.resize(args_.zero_point_gradient ? partial_scale_.size() : 0);
    args_.zero_point_gradient ? run_passes<true>() : run_passes<false>();
    if (segments_.slices == 1) return;
    at::parallel_for(0, segments_.count, 1024, [&](int64_t from, int64_t to) {
      std::vector<double> lanes;
      for (int64_t s = from; s < to; ++s) {
        const int64_t at = s * segments_.slices;
        args_.scale_gradient[s] =
            static_cast<C>(sum_slices(&partial_scale_[at], segments_.slices, lanes));
        if (args_.zero_point_gradient) {
          args_.zero_point_gradient[s] =
              static_cast<C>(sum_slices(&partial_zero_point_[at], segments_.slices, lanes));
        }
      }
    });
  }

 private:
  template <bool kBoth>
  void run_passes() {
    segments_.in_columns ? run_columns<kBoth>() : run_runs<kBoth>();
  }

  // Writes the sums of a slice; `at` is the segment * slices + the number of the slice within it.
  template <bool kBoth>
  void write_sums(int64_t at, double scale, double zero_point) {
    if (segments_.slices > 1) {
      partial_scale_[at] = scale;
      if constexpr (kBoth) partial_zero_point_[at] = zero_point;
    } else {  // NB: as the lanes of other slices are 0, -0 becomes +0
      args_.scale_gradient[at] = static_cast<C>(scale + 0.0);
      if constexpr (kBoth) args_.zero_point_gradient[at] = static_cast<C>(zero_point + 0.0);
    }
  }

  template <bool kBoth>
  void run_runs() {
    switch (kPackLanes * team_size(segments_.length)) {
      case 16:
        return run_runs_in<kBoth, 16>();
      case 32:
        return run_runs_in<kBoth, 32>();
      default:
        return run_runs_in<kBoth, 0>();
    }
  }

  // kLanes: the lanes of short segments, for which loops of a fixed length are faster; 0: others.
  template <bool kBoth, int kLanes>
  void run_runs_in() {
    const int64_t tasks = segments_.count * segments_.slices;
    const int64_t length = std::max<int64_t>(1, std::min(segments_.length, kRunSlice));
    at::parallel_for(0, tasks, std::max<int64_t>(1, 32768 / length), [&](int64_t from, int64_t to) {
      LaneSums<C> sums;
      run_on_isa(isa_, [&]() __attribute__((always_inline)) {
        for (int64_t t = from; t < to; ++t) sum_run_slice<kBoth, kLanes>(t, sums);
      });
    });
  }

  // Sums one slice of one segment that lies in runs.
  template <bool kBoth, int kLanes>
  BARAQUANT_HD void sum_run_slice(int64_t task, LaneSums<C>& sums) {
    const int64_t s = segments_.slices == 1 ? task : task / segments_.slices;
    const int64_t begin = (task - s * segments_.slices) * kRunSlice;
    const int64_t end = std::min(begin + kRunSlice, segments_.length_of(s));
    // A power of two.
    const int lanes = kLanes > 0 ? kLanes : kPackLanes * team_size(segments_.length);
    const int64_t run = segments_.run_length.value;
    const OneGrid<C> one{Grid<C>(q_.scale_at(s), q_.zero_point_at(s), q_.range)};
    std::fill_n(sums.scale, lanes, 0.0);
    if constexpr (kBoth) std::fill_n(sums.zero_point, lanes, 0.0);
    for (int64_t j = begin; j < end;) {
      const int64_t left = (segments_.run_of(j) + 1) * run - j;
      const int64_t count = std::min({end - j, left, kShares});
      write_shares<kBoth>(args_, segments_.at(s, j), count, one, sums);
      for (int64_t k = 0; k < count;) {
        const int64_t lane = (j - begin + k) & (lanes - 1);
        const int64_t width = std::min(count - k, lanes - lane);
        width == kLanes ? add_shares<kBoth>(sums, k, kLanes, 0)
                        : add_shares<kBoth>(sums, k, width, lane);
        k += width;
      }
      j += count;
    }
    write_sums<kBoth>(task, sum_pairs(sums.scale, lanes),
                      kBoth ? sum_pairs(sums.zero_point, lanes) : 0);
  }

  template <bool kBoth>
  void run_columns() {
    const int64_t tiles = (segments_.columns + kColumnTile - 1) / kColumnTile;
    const int64_t blocks = segments_.count / segments_.columns;
    at::parallel_for(0, blocks * segments_.slices * tiles, 1, [&](int64_t from, int64_t to) {
      LaneSums<C> sums;
      for (int64_t t = from; t < to; ++t) {
        run_on_isa(isa_, [&]() __attribute__((always_inline)) {
          sum_column_tile<kBoth>(t / tiles / segments_.slices, t / tiles % segments_.slices,
                                 t % tiles * kColumnTile, sums);
        });
      }
    });
  }

  // Sums one slice of the rows of a block, for a tile of its columns.
  template <bool kBoth>
  BARAQUANT_HD void sum_column_tile(int64_t block, int64_t slice, int64_t column,
                                    LaneSums<C>& sums) {
    const int64_t width = std::min(kColumnTile, segments_.columns - column);
    const int64_t end = std::min((slice + 1) * kRowSlice, segments_.length_of(block));
    const int64_t segment = block * segments_.columns + column;
    C scales[kColumnTile], zero_points[kColumnTile];
    gather_scales(q_, segment, width, scales, zero_points);
    const GridEach<C> each{scales, zero_points, q_.range};
    std::fill_n(sums.scale, kRowLanes * kColumnTile, 0.0);
    if constexpr (kBoth) std::fill_n(sums.zero_point, kRowLanes * kColumnTile, 0.0);
    for (int64_t row = slice * kRowSlice; row < end; ++row) {
      const int64_t at = (segments_.start(block) + row) * segments_.columns + column;
      const int64_t lane = row % kRowLanes * kColumnTile;
      write_shares<kBoth>(args_, at, width, each, sums);
      add_shares<kBoth>(sums, 0, width, lane);
    }
    for (int64_t i = 0; i < width; ++i) {
      write_sums<kBoth>((segment + i) * segments_.slices + slice, sum_lanes(sums.scale + i),
                        kBoth ? sum_lanes(sums.zero_point + i) : 0);
    }
  }

  static double sum_lanes(const double* column) {
    double lanes[kRowLanes];
    for (int k = 0; k < kRowLanes; ++k) lanes[k] = column[k * kColumnTile];
    return sum_pairs(lanes, kRowLanes);
  }

  const QparamsGradientParams<T> args_;
  const Qparams<C> q_;
  const Segments segments_;
  const CpuIsa isa_;
  std::vector<double> partial_scale_, partial_zero_point_;  // of several slices
};

}  // namespace baraquant::affine
