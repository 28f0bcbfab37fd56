// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the affine family.
#include "affine/kernels.h"
#include "affine/cpu/qparams_gradient.h"
#include "elementwise/cpu.h"
#include "frame/plan.h"

namespace baraquant::affine {

template <typename C>
bool only_noted(const char* name, int64_t block, const char* accumulator = "") {
  return only_planned([&] {
    return KernelPlan{
        name,       "cpu", cpu_isa_name(cpu_isa()), std::to_string(block), compute_name<C>(),
        accumulator};
  });
}

struct Cpu {
  template <typename Op>
  static void transform(const typename Op::First* first, const typename Op::Second* second,
                        typename Op::Result* result, uint8_t* mask, int64_t numel,
                        const Qparams<typename Op::C>& q) {
    if (only_noted<typename Op::C>(Op::kName, kBlock)) return;
    transform_cpu<Op>(first, second, result, mask, numel, q);
  }

  template <typename T>
  static void qparams_gradient(const QparamsGradientArgs<T>& args,
                               const Qparams<ComputeType<T>>& q) {
    if (only_noted<ComputeType<T>>("qparams_gradient", kRunSlice, "float64")) return;
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
