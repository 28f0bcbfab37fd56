// SPDX-License-Identifier: BSD-3-Clause
// A few rows of the input by a weight that is dequantized in registers. A thread takes kOutputs rows
// of the weight at a time, which stay in its cache while four rows of the input after the other are
// multiplied with them. For more rows of the input, the weight is dequantized for PyTorch's product.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "frame/cpu_plan.h"
#include "frame/dtypes.h"
#include "machine/integers.h"
#include "weight_only/cpu/lanes.h"
#include "weight_only/launch.h"

namespace baraquant::weight_only {

constexpr int64_t kOutputs = 32;
constexpr int64_t kUnit = 65536;  // the fewest products for a task of a thread

// A weight of integers, without torch.
struct CpuWeight {
  const int8_t* values;       // [outputs, columns]
  const float* scale;         // [outputs, groups]
  const int32_t* zero_point;  // [outputs, groups], or null
  int64_t columns, group_size;

  int64_t groups() const { return divide_up(columns, group_size); }

  // The columns of a block: whole groups, or a part of one. Four rows of the input of so many
  // columns fit into the fastest cache.
  int64_t block() const {
    constexpr int64_t kMost = 1024;
    return group_size < kMost ? kMost / group_size * group_size : kMost;
  }
};

template <typename T>
struct CpuProduct {
  const float* input;  // [rows, columns]
  int64_t rows, outputs;
  CpuWeight weight;
  const T* bias;  // [outputs], or null
  T* output;      // [rows, outputs]
};

namespace portable {
#include "weight_only/cpu/rows.h"
}
#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "weight_only/cpu/rows.h"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
namespace avx512 {
#include "weight_only/cpu/rows.h"
}
#pragma GCC pop_options
#endif

namespace {

// What the instruction set offers.
template <typename T>
struct Functions {
  void (*multiply_outputs)(const CpuProduct<T>&, int64_t begin, int64_t end);
  void (*dequantize_rows)(const CpuWeight&, int64_t begin, int64_t end, T* to);
};

template <typename T>
Functions<T> functions_for(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa >= CpuIsa::kAvx512) return {&avx512::multiply_outputs<T>, &avx512::dequantize_rows<T>};
  if (isa == CpuIsa::kAvx2) return {&avx2::multiply_outputs<T>, &avx2::dequantize_rows<T>};
#endif
  return {&portable::multiply_outputs<T>, &portable::dequantize_rows<T>};
}

template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

CpuWeight arguments(const Int8Weight& weight) {
  return {.values = read<int8_t>(weight.values),
          .scale = read<float>(weight.scale),
          .zero_point = read<int32_t>(weight.zero_point),
          .columns = weight.values.size(1),
          .group_size = weight.group_size};
}

// The input as float32: itself, or converted to `scratch`.
template <typename T>
const float* as_float(const at::Tensor& input, std::vector<float>& scratch) {
  const T* const given = read<T>(input);
  if constexpr (std::is_same_v<T, float>) {
    return given;
  } else {
    scratch.resize(input.numel());
    std::transform(given, given + input.numel(), scratch.begin(),
                   [](T x) { return to_compute<float>(x); });
    return scratch.data();
  }
}

template <typename T>
void multiply(const FewRows& call) {
  const int64_t rows = call.input.size(0), columns = call.input.size(1);
  const int64_t outputs = call.output.size(1);
  if (only_planned([&] {
        const int64_t converted = std::is_same_v<T, float> ? 0 : rows * columns * 4;
        auto plan = cpu_plan<float>("weight_only_linear", "4x16", "float32", converted);
        plan.bit_stable = false;  // a GPU adds in another order
        return plan;
      })) {
    return;
  }
  std::vector<float> scratch;
  const CpuProduct<T> args{.input = as_float<T>(call.input, scratch),
                           .rows = rows,
                           .outputs = outputs,
                           .weight = arguments(call.weight),
                           .bias = read<T>(call.bias),
                           .output = static_cast<T*>(call.output.mutable_data_ptr())};
  const auto multiply_outputs = functions_for<T>(cpu_isa()).multiply_outputs;
  const auto work = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kOutputs; n < std::min(outputs, end * kOutputs); n += kOutputs) {
      multiply_outputs(args, n, std::min(outputs, n + kOutputs));
    }
  };
  at::parallel_for(0, divide_up(outputs, kOutputs), kUnit / (kOutputs * columns * rows) + 1, work);
}

template <typename T>
void dequantize(const Int8Weight& weight, const at::Tensor& target) {
  if (only_planned([] { return cpu_plan<float>("dequantize_weight", "1x16"); })) return;
  const CpuWeight args = arguments(weight);
  const auto dequantize_rows = functions_for<T>(cpu_isa()).dequantize_rows;
  T* const to = static_cast<T*>(target.mutable_data_ptr());
  at::parallel_for(0, target.size(0), kUnit / args.columns + 1, [&](int64_t begin, int64_t end) {
    dequantize_rows(args, begin, end, to + begin * args.columns);
  });
}

// Up to so many rows of the input, multiplying in registers is faster than dequantizing first and
// calling PyTorch's product. For bfloat16 PyTorch has instructions that compute in it.
constexpr int64_t kFewRows = 48, kFewRowsOfBfloat16 = 4;

bool takes(const at::Tensor& input, const at::Tensor&, int64_t) {
  const bool is_float = input.scalar_type() == at::kFloat;
  return dequantizes_in_chunks(input) &&
         input.size(0) <= (is_float ? kFewRows : kFewRowsOfBfloat16);
}

void few_rows_cpu(const FewRows& call) {
  if (call.input.scalar_type() == at::kFloat) {
    multiply<float>(call);
  } else {
    multiply<BFloat16>(call);
  }
}

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&takes, &few_rows_cpu};
  return kernels;
}

void dequantize_on_cpu(const Int8Weight& weight, const at::Tensor& target) {
  if (target.scalar_type() == at::kFloat) {
    dequantize<float>(weight, target);
  } else {
    dequantize<BFloat16>(weight, target);
  }
}

}  // namespace baraquant::weight_only
