// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the fused family.
#include "frame/cpu_plan.h"
#include "fused/cpu/rows.h"
#include "fused/launch.h"

namespace baraquant::fused {
namespace {

// Makes every row and, if it is quantized, reads it again while it is still in a cache.
template <typename Stage, typename T, typename Params>
void run_rows(const Params& args) {
  const Rows<T>& rows = args.rows;
  const int64_t grain = std::max<int64_t>(range::kUnit / rows.length, 1);
  at::parallel_for(0, rows.count, grain, [&](int64_t from, int64_t to) {
    Stage stage(args);
    std::vector<T> made(rows.values ? static_cast<size_t>(rows.length) : 0);
    run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
      for (int64_t r = from; r < to; ++r) {
        T* const y = rows.values ? made.data() : rows.output + r * rows.length;
        stage.make(r, y);
        if (!rows.values) continue;
        if (rows.rule.symmetric) {
          quantize_row<range::Magnitude<T>>(rows, y, r);
        } else {
          quantize_row<range::MinMax<T>>(rows, y, r);
        }
      }
    });
  });
}

template <typename T>
bool only_planned_as(const char* name, const Rows<T>& rows, const char* accumulator = "") {
  return only_planned([&] {
    const std::string ending = rows.values ? "_quantize" : "";
    return cpu_plan<ComputeType<T>>(name + ending, "row", accumulator);
  });
}

struct Cpu {
  template <typename T>
  static bool norm(const NormParams<T>& args) {
    const char* name = args.centered ? "layer_norm" : "rms_norm";
    if (!only_planned_as(name, args.rows, "float64")) run_rows<NormStage<T>, T>(args);
    return true;
  }

  template <typename T>
  static bool activation(const ActivationParams<T>& args) {
    const char* name = activation_name(args.activation);
    if (!only_planned_as(name, args.rows)) run_rows<ActivationStage<T>, T>(args);
    return true;
  }

  template <typename T>
  static bool hadamard(const HadamardParams<T>& args) {
    if (!only_planned_as("hadamard", args.rows)) run_rows<HadamardStage<T>, T>(args);
    return true;
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  using L = Launch<Cpu>;
  static const Kernels kernels{&L::norm, &L::activation, &L::hadamard};
  return kernels;
}

}  // namespace baraquant::fused
