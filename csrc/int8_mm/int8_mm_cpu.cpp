// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the integer matrix family: portable loops.
#include <ATen/Parallel.h>

#include "int8_mm/int8_mm.h"
#include "int8_mm/kernels.h"
#include "plan.h"

namespace baraquant::int8_mm {
namespace {

constexpr int64_t kUnit = 32768;  // products that one task of parallel_for takes at least

template <typename A>
int32_t dot(const A* a, const int8_t* w, int64_t k) {
  uint32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum += static_cast<uint32_t>(static_cast<int32_t>(a[i]) * static_cast<int32_t>(w[i]));
  }
  return static_cast<int32_t>(sum);
}

template <typename T, typename A>
void multiply(const Factors& f, const Rescaling<ComputeType<T>>& r, T* output) {
  using C = ComputeType<T>;
  const A* input = static_cast<const A*>(f.input);
  const int64_t grain = kUnit / (f.k + 1) + 1;
  at::parallel_for(0, f.m * f.n, grain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t m = i / f.n, n = i % f.n;
      int32_t acc = dot(input + m * f.k, f.weight + n * f.k, f.k);
      if (r.weight_sum) acc = shift(acc, r.zero_point.at(m), r.weight_sum[n]);
      const C bias = r.bias ? r.bias[n] : kNoBias<C>;
      output[i] = from_compute<T>(rescale(acc, r.weight_scale[n], r.input_scale.at(m), bias));
    }
  });
}

struct Cpu {
  template <typename T>
  static void product(const Factors& f, const Rescaling<ComputeType<T>>& r, T* output) {
    const bool in_double = sizeof(ComputeType<T>) == 8;
    if (only_planned([&] {
          return KernelPlan{
              "int8_product", "cpu", "default", "1x1", in_double ? "float64" : "float32",
              "int32",        0,     true,      true};
        })) {
      return;
    }
    f.is_unsigned ? multiply<T, uint8_t>(f, r, output) : multiply<T, int8_t>(f, r, output);
  }

  static void weight_sums(const at::Tensor& weight, const at::Tensor& sums) {
    if (only_planned([] {
          return KernelPlan{"weight_sums", "cpu", "default", "1", "int32", "int32", 0, true, true};
        })) {
      return;
    }
    const int64_t k = weight.size(1);
    const auto* w = static_cast<const int8_t*>(weight.const_data_ptr());
    auto* result = static_cast<int32_t*>(sums.mutable_data_ptr());
    at::parallel_for(0, weight.size(0), kUnit / (k + 1) + 1, [&](int64_t from, int64_t to) {
      for (int64_t n = from; n < to; ++n) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += static_cast<uint32_t>(w[n * k + i]);
        result[n] = static_cast<int32_t>(sum);
      }
    });
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&Launch<Cpu>::product, &Cpu::weight_sums};
  return kernels;
}

}  // namespace baraquant::int8_mm
