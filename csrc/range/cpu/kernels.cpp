// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the range family.
#include <atomic>

#include "elementwise/cpu.h"
#include "frame/cpu_plan.h"
#include "range/cpu/reduce.h"
#include "range/launch.h"

namespace baraquant::range {
namespace {

// A row of at most this many bytes is still in a cache when it is read again.
constexpr int64_t kCached = 1 << 20;
// One task takes this many elements of short rows together.
constexpr int64_t kBatch = 16384;

template <typename T, typename C>
BARAQUANT_HD void store(const Chosen<C>& chosen, const ChooseParams<T>& args, int64_t s) {
  if (args.scale) args.scale[s] = chosen.scale;
  if (args.zero_point) args.zero_point[s] = chosen.zero_point;
}

template <typename R, typename T>
void choose_segments(const ChooseParams<T>& args) {
  reduce_cpu<R>(args.input, args.segments,
                [&](int64_t s, const R& range) __attribute__((always_inline)) {
                  store(range::choose(range, args.rule), args, s);
                });
}

// Quantizes the rows from .. to - 1: finds the scale of a row, then reads the row again while it is
// still in a cache.
template <typename Op, typename R>
void quantize_rows(const ChooseParams<typename Op::First>& args, typename Op::Result* result,
                   uint8_t* mask, int64_t from, int64_t to) {
  using C = typename Op::C;
  alignas(64) uint8_t inside[affine::kBlock];
  run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
    for (int64_t s = from; s < to; ++s) {
      const int64_t start = args.segments.start(s), length = args.segments.length_of(s);
      R range;
      extend(range, args.input + start, length);
      const Chosen<C> chosen = range::choose(range, args.rule);
      store(chosen, args, s);
      const affine::OneGrid<C> grid{
          affine::Grid<C>(chosen.scale, static_cast<C>(chosen.zero_point), args.rule.range)};
      for (int64_t begin = start; begin < start + length; begin += affine::kBlock) {
        const int64_t count = std::min(affine::kBlock, start + length - begin);
        const affine::CpuBlock<Op> block{args.input + begin, nullptr, result + begin};
        affine::loop_over<Op>(block, inside, 0, count, grid);
        if constexpr (Op::kMask == affine::Mask::kWrite) {
          affine::pack_bits(inside, count, mask + begin / 8);
        }
      }
    }
  });
}

template <typename T>
bool only_planned_as(const std::string& name, const char* tile) {
  return only_planned([&] { return cpu_plan<ComputeType<T>>(name, tile); });
}

const char* tile_name(const Segments& segments) { return segments.in_columns ? "columns" : "runs"; }

struct Cpu {
  template <typename T>
  static void choose(const ChooseParams<T>& args) {
    if (only_planned_as<T>("choose_qparams", tile_name(args.segments))) return;
    args.rule.symmetric ? choose_segments<Magnitude<T>>(args) : choose_segments<MinMax<T>>(args);
  }

  template <typename Op>
  static bool one_pass(const ChooseParams<typename Op::First>& args, typename Op::Result* result,
                       uint8_t* mask) {
    using T = typename Op::First;
    const Segments& rows = args.segments;
    const bool enough_rows = rows.count >= at::get_num_threads() || args.numel <= kUnit;
    if (!enough_rows || rows.length * static_cast<int64_t>(sizeof(T)) > kCached) return false;
    if (only_planned_as<T>(std::string("dynamic_") + Op::kName, "row")) return true;
    const int64_t grain = std::max<int64_t>(kUnit / rows.length, 1);
    at::parallel_for(0, rows.count, grain, [&](int64_t from, int64_t to) {
      args.rule.symmetric ? quantize_rows<Op, Magnitude<T>>(args, result, mask, from, to)
                          : quantize_rows<Op, MinMax<T>>(args, result, mask, from, to);
    });
    return true;
  }

  template <typename T>
  static void observe(const ObserveParams<T>& args) {
    if (args.enabled && *args.enabled == 0) return;
    if (only_planned_as<T>("observe", tile_name(args.choose.segments))) return;
    using C = ComputeType<T>;
    std::atomic<bool> any_skipped = false;
    reduce_cpu<MinMax<T>>(
        args.choose.input, args.choose.segments, [&](int64_t s, const MinMax<T>& seen) {
          const auto observation =
              range::observe<T>({args.min[s], args.max[s]}, seen, args.averaging_constant);
          const RunningRange<C> running = observation.range;
          args.min[s] = running.min;
          args.max[s] = running.max;
          if (observation.skipped) any_skipped.store(true, std::memory_order_relaxed);
          if (args.choose.scale && running.is_known()) {
            store(range::choose(running, args.choose.rule), args.choose, s);
          }
        });
    if (args.skipped_batches && any_skipped) ++*args.skipped_batches;
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  using L = Launch<Cpu>;
  static const Kernels kernels{&L::choose, &L::quantize, &L::fake_quantize, &L::observe};
  return kernels;
}

}  // namespace baraquant::range
