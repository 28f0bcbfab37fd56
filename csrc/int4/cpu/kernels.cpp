// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of four-bit weights: a thread takes whole rows.
#include <ATen/Parallel.h>

#include "frame/cpu_plan.h"
#include "int4/cpu/expand.h"
#include "int4/launch.h"

namespace baraquant::int4 {
namespace {

constexpr int64_t kUnit = 16384;  // the fewest elements for a task of a thread

template <typename C>
bool only_planned_as(const char* name) {
  return only_planned([&] { return cpu_plan<C>(name, "1"); });
}

template <typename F>
void for_each_row(int64_t rows, int64_t columns, const F& f) {
  at::parallel_for(0, rows, kUnit / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
    run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
      for (int64_t row = begin; row < end; ++row) f(row);
    });
  });
}

template <typename T, typename Range>
BARAQUANT_HD Range range_of(const T* values, int64_t count) {
  Range range;
  for (int64_t i = 0; i < count; ++i) range.add(values[i]);
  return range;
}

// Calls f(g, values, count) for each group of a row.
template <typename T, typename F>
BARAQUANT_HD void for_each_group(const T* row, int64_t columns, int64_t group_size, const F& f) {
  for (int64_t g = 0, k = 0; k < columns; ++g, k += group_size) {
    f(g, row + k, std::min(group_size, columns - k));
  }
}

struct Cpu {
  template <typename T>
  static void choose(const ChooseParams<T>& args) {
    using C = ComputeType<T>;
    if (only_planned_as<C>("choose_int4_qparams")) return;
    for_each_row(args.rows, args.columns, [&](int64_t n) __attribute__((always_inline)) {
      const T* const row = args.weight + n * args.columns;
      const auto all = range_of<T, range::Magnitude<T>>(row, args.columns);
      const C scale = row_scale(range::value_of_magnitude<T>(all.max), args.width);
      args.scale[n] = scale;
      for_each_group(
          row, args.columns, args.group_size,
          [&](int64_t g, const T* values, int64_t count) __attribute__((always_inline)) {
            Group group;
            if (args.symmetric) {
              const auto range = range_of<T, range::Magnitude<T>>(values, count);
              group = choose_symmetric(range::value_of_magnitude<T>(range.max), scale, args.width);
            } else {
              auto range = range_of<T, range::MinMax<T>>(values, count);
              range.add(T{});
              group =
                  choose_asymmetric(range::value_of_ordered<T>(range.lowest),
                                    range::value_of_ordered<T>(range.highest), scale, args.width);
            }
            args.factor[n * args.groups() + g] = group.factor;
            args.zero_point[n * args.groups() + g] = group.zero_point;
          });
    });
  }

  template <typename T>
  static void quantize(const QuantizeParams<T>& args) {
    using C = ComputeType<T>;
    if (only_planned_as<C>("quantize_int4")) return;
    const Packed& packed = args.packed;
    for_each_row(args.rows, packed.columns, [&](int64_t n) __attribute__((always_inline)) {
      const T* const row = args.weight + n * packed.columns;
      uint8_t* const target = args.target + n * packed_size(packed.columns);
      for_each_group(row, packed.columns, packed.group_size,
                     [&](int64_t g, const T* values, int64_t count) __attribute__((always_inline)) {
                       const Grid<C> grid(args.scale[n], packed.group(n, g), args.width);
                       uint8_t* const to = target + g * packed.group_size / 2;
                       for (int64_t i = 0; i < count / 2; ++i) {
                         const uint32_t low = grid.quantize(to_compute<C>(values[2 * i]));
                         const uint32_t high = grid.quantize(to_compute<C>(values[2 * i + 1]));
                         to[i] = static_cast<uint8_t>(low | high << 4);
                       }
                       if (count % 2 != 0) {
                         to[count / 2] =
                             static_cast<uint8_t>(grid.quantize(to_compute<C>(values[count - 1])));
                       }
                     });
    });
  }
};

void expand_weight(const ExpandParams& args, const at::Tensor&) {
  if (only_planned_as<int32_t>("expand_int4")) return;
  const int64_t columns = args.packed.columns;
  const CpuIsa isa = cpu_isa();
  at::parallel_for(0, args.rows, kUnit / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      expand_row(isa, args.packed, n, 0, columns, args.target + n * columns);
    }
  });
}

void pack(const PackParams& args, const at::Tensor&) {
  if (only_planned_as<int32_t>("pack_int4")) return;
  for_each_row(args.rows, args.columns, [&](int64_t n) __attribute__((always_inline)) {
    const int8_t* __restrict const from = args.integers + n * args.columns;
    uint8_t* __restrict const to = args.target + n * packed_size(args.columns);
    const int64_t pairs = args.columns / 2;
    for (int64_t i = 0; i < pairs; ++i) to[i] = packed_pair(from[2 * i], from[2 * i + 1]);
    if (args.columns % 2 != 0) to[pairs] = packed_pair(from[args.columns - 1], -kMiddle);
  });
}

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&Launch<Cpu>::choose, &Launch<Cpu>::quantize, &expand_weight, &pack};
  return kernels;
}

}  // namespace baraquant::int4
