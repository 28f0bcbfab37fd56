// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the affine family.
#include "affine/cpu/qparams_gradient.h"
#include "affine/launch.h"
#include "elementwise/cpu.h"
#include "frame/cpu_plan.h"

namespace baraquant::affine {

struct Cpu {
  template <typename Op>
  static void transform(const typename Op::First* first, const typename Op::Second* second,
                        typename Op::Result* result, uint8_t* mask, int64_t numel,
                        const Qparams<typename Op::C>& q) {
    if (only_planned([] { return cpu_plan<typename Op::C>(Op::kName, std::to_string(kBlock)); })) {
      return;
    }
    transform_cpu<Op>(first, second, result, mask, numel, q);
  }

  template <typename T>
  static void qparams_gradient(const QparamsGradientParams<T>& args,
                               const Qparams<ComputeType<T>>& q) {
    if (only_planned([] {
          return cpu_plan<ComputeType<T>>("qparams_gradient", std::to_string(kRunSlice), "float64");
        })) {
      return;
    }
    QparamsGradientCpu<T>(args, q).run();
  }
};

const Kernels& cpu_kernels() {
  using L = Launch<Cpu>;
  static const Kernels kernels{&L::quantize,       &L::fake_quantize,   &L::dequantize,
                               &L::input_gradient, &L::masked_gradient, &L::qparams_gradient};
  return kernels;
}

}  // namespace baraquant::affine
