// SPDX-License-Identifier: BSD-3-Clause
// A few rows of the input by a weight that is dequantized in registers. A thread takes kOutputs rows
// of the weight at a time, which stay in its cache while four rows of the input after the other are
// multiplied with them. For more rows of the input, the weight is dequantized for PyTorch's product.
// A packed weight is unpacked first, a few rows at a time, so it gives the bits of the int8 weight.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "frame/cpu_plan.h"
#include "frame/dtypes.h"
#include "frame/elements.h"
#include "int4/cpu/expand.h"
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
    constexpr int64_t kMax = 1024;
    return group_size < kMax ? kMax / group_size * group_size : kMax;
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
#elif defined(__aarch64__)
namespace neon {
#include "weight_only/cpu/rows.h"
}
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
  if (isa >= CpuIsa::kAvx2) return {&avx2::multiply_outputs<T>, &avx2::dequantize_rows<T>};
#endif
#if defined(__aarch64__)  // every ARM of 64 bits has NEON
  return {&neon::multiply_outputs<T>, &neon::dequantize_rows<T>};
#else
  return {&portable::multiply_outputs<T>, &portable::dequantize_rows<T>};
#endif
}

// Rows of a weight as int8: as they are stored, or unpacked to scratch memory.
class Int8Rows {
 public:
  Int8Rows(const IntegerWeight& weight, int64_t most)
      : weight_{.values = weight.is_packed() ? nullptr : elements<int8_t>(weight.values),
                .scale = elements<float>(weight.scale),
                .zero_point = elements<int32_t>(weight.zero_point),
                .columns = weight.columns,
                .group_size = weight.group_size},
        packed_(weight.is_packed() ? elements<uint8_t>(weight.values) : nullptr),
        scratch_(packed_ ? most * weight.columns : 0) {}

  // The rows from `begin` on. NB: the next call overwrites what was unpacked.
  CpuWeight from(int64_t begin, int64_t count) {
    CpuWeight rows = weight_;
    const int64_t groups = begin * rows.groups();
    rows.scale += groups;
    if (rows.zero_point) rows.zero_point += groups;
    if (!packed_) {
      rows.values += begin * rows.columns;
      return rows;
    }
    const int64_t bytes = int4::packed_size(rows.columns);
    for (int64_t i = 0; i < count; ++i) {
      int4::unpack(isa_, packed_ + (begin + i) * bytes, rows.columns,
                   scratch_.data() + i * rows.columns);
    }
    rows.values = scratch_.data();
    return rows;
  }

 private:
  const CpuIsa isa_ = cpu_isa();
  CpuWeight weight_;
  const uint8_t* packed_;  // or null
  std::vector<int8_t> scratch_;
};

// The input as float32: itself, or converted to `scratch`.
template <typename T>
const float* as_float(const at::Tensor& input, std::vector<float>& scratch) {
  const T* const given = elements<T>(input);
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
  const float* const input = as_float<T>(call.input, scratch);
  const T* const bias = elements<T>(call.bias);
  T* const output = static_cast<T*>(call.output.mutable_data_ptr());
  const auto multiply_outputs = functions_for<T>(cpu_isa()).multiply_outputs;
  // What is unpacked for all rows of the input at once stays in the fastest cache.
  const int64_t step = call.weight.is_packed() && rows <= 4 ? kOutputs / 8 : kOutputs;
  const auto work = [&](int64_t begin, int64_t end) {
    Int8Rows weight(call.weight, step);
    const int64_t stop = std::min(outputs, end * kOutputs);
    for (int64_t n = begin * kOutputs; n < stop; n += step) {
      const int64_t count = std::min(step, stop - n);
      multiply_outputs({.input = input,
                        .rows = rows,
                        .outputs = outputs,
                        .weight = weight.from(n, count),
                        .bias = bias ? bias + n : nullptr,
                        .output = output + n},
                       0, count);
    }
  };
  at::parallel_for(0, divide_up(outputs, kOutputs), kUnit / (kOutputs * columns * rows) + 1, work);
}

template <typename T>
void dequantize_rows(const IntegerWeight& weight, const at::Tensor& target) {
  if (only_planned([] { return cpu_plan<float>("dequantize_weight", "1x16"); })) return;
  const auto dequantize_rows = functions_for<T>(cpu_isa()).dequantize_rows;
  T* const to = static_cast<T*>(target.mutable_data_ptr());
  const int64_t columns = weight.columns;
  at::parallel_for(0, target.size(0), kUnit / columns + 1, [&](int64_t begin, int64_t end) {
    Int8Rows rows(weight, 1);
    for (int64_t n = begin; n < end; ++n) dequantize_rows(rows.from(n, 1), 0, 1, to + n * columns);
  });
}

// Up to so many rows of the input, multiplying in registers is faster than dequantizing first and
// calling PyTorch's product. For bfloat16 PyTorch has instructions that compute in it.
constexpr int64_t kFewRows = 48, kFewRowsOfBfloat16 = 4;

bool dequantizes(const IntegerWeight&, at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16;
}

bool takes(const at::Tensor& input, const IntegerWeight& weight) {
  const bool is_float = input.scalar_type() == at::kFloat;
  return dequantizes(weight, input.scalar_type()) &&
         input.size(0) <= (is_float ? kFewRows : kFewRowsOfBfloat16);
}

template <typename F>
void with_type(at::ScalarType dtype, const F& f) {
  dtype == at::kFloat ? f(Type<float>{}) : f(Type<BFloat16>{});
}

void few_rows_cpu(c10::ArrayRef<FewRows> calls) {
  with_type(calls[0].input.scalar_type(), [&]<typename T>(Type<T>) {
    for (const FewRows& call : calls) multiply<T>(call);
  });
}

void dequantize_cpu(const IntegerWeight& weight, const at::Tensor& target) {
  with_type(target.scalar_type(), [&]<typename T>(Type<T>) { dequantize_rows<T>(weight, target); });
}

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&takes, &few_rows_cpu, &dequantizes, &dequantize_cpu};
  return kernels;
}

}  // namespace baraquant::weight_only
