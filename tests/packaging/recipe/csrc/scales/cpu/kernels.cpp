// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernel of the scales family.
#include <ATen/Parallel.h>

#include "frame/cpu_plan.h"
#include "scales/launch.h"
#include "scales/math.h"

namespace baraquant::scales {
namespace {

constexpr int64_t kGrain = 16384;  // the fewest elements for a task of a thread

struct Cpu {
  template <typename T>
  static void round(const T* from, T* to, int64_t count) {
    if (only_planned([] { return cpu_plan<ComputeType<T>>("round_to_power_of_two", "1"); })) return;
    at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = nearest_power_of_two(from[i]);
    });
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&Launch<Cpu>::round};
  return kernels;
}

}  // namespace baraquant::scales
