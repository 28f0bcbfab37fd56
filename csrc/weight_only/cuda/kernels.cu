// SPDX-License-Identifier: BSD-3-Clause
// Few rows of float16 or bfloat16 by a weight that is dequantized in registers
// (machine/few_rows.cuh), with its device guard, stream and launch check. For more rows the weight
// is dequantized for PyTorch's product.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "affine/math.h"
#include "frame/cuda_plan.cuh"
#include "machine/few_rows.cuh"
#include "machine/pack.cuh"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

constexpr int64_t kMostRows = 64;  // with more, it is faster to dequantize the weight first
constexpr int kColumns = 16;       // of int8, which a thread loads at once

// sums += weight * input, in float32.
template <typename T>
__device__ __forceinline__ void multiply_fragments(float (&sums)[4], const uint32_t (&w)[4],
                                                   uint32_t x0, uint32_t x1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  }
#endif
}

template <typename T, bool has_zero_point>
struct FloatProduct {
  static constexpr int kColumns = weight_only::kColumns, kInputWords = 2;
  using Sum = float;

  int64_t m, n, k;
  const T* input;             // [m, k]
  const int8_t* values;       // [n, k]
  const float* scale;         // [n, groups]
  const int32_t* zero_point;  // the same, or null
  int64_t groups;
  int group_shift;
  const T* bias;  // [n], or null
  T* output;      // [m, n]

  __device__ __forceinline__ const uint8_t* input_row(int64_t row) const {
    return reinterpret_cast<const uint8_t*>(input + row * k);
  }

  struct Group {
    float scale, zero_point;
  };
  struct Row {
    const uint8_t* values;
    const float* scale;
    const int32_t* zero_point;
    int group_shift;

    __device__ __forceinline__ Group group(uint32_t column) const {
      const uint32_t g = column >> group_shift;
      return {scale[g], has_zero_point ? static_cast<float>(zero_point[g]) : 0.f};
    }
  };
  __device__ __forceinline__ Row row(int64_t row) const {
    return {reinterpret_cast<const uint8_t*>(values + row * k), scale + row * groups,
            has_zero_point ? zero_point + row * groups : nullptr, group_shift};
  }

  template <int tiles>
  static __device__ __forceinline__ void multiply(float (&sums)[tiles][4], const uint4 (&words)[2],
                                                  const Group (&groups)[2],
                                                  const uint4 (&input)[tiles][kInputWords]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 a = dequantized(few_rows::word_of(words[0], i), groups[0]);
      const uint2 b = dequantized(few_rows::word_of(words[1], i), groups[1]);
      const uint32_t w[4] = {a.x, b.x, a.y, b.y};
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const uint4& half = input[t][i / 2];
        multiply_fragments<T>(sums[t], w, few_rows::word_of(half, i % 2 * 2),
                              few_rows::word_of(half, i % 2 * 2 + 1));
      }
    }
  }

  __device__ __forceinline__ void write(int64_t row, int64_t column, float sum) const {
    const float result = bias ? sum + to_compute<float>(bias[column]) : sum;
    output[row * n + column] = from_compute<T>(result);
  }

 private:
  // The four numbers of a word.
  static __device__ __forceinline__ uint2 dequantized(uint32_t word, const Group& group) {
    const uint32_t positive = word ^ 0x80808080u;  // 128 more, in 0 .. 255
    float w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // As the low byte of the float 2^23: exact, and faster than a conversion.
      const uint32_t bits = __byte_perm(positive, 0x4b000000u, 0x7540u | static_cast<unsigned>(i));
      const float q = __uint_as_float(bits) - 8388736.f;  // 2^23 + 128
      w[i] = affine::dequantize(q, group.scale, group.zero_point);
    }
    return {static_cast<uint32_t>(word_of_two<T>(w[0], w[1])),
            static_cast<uint32_t>(word_of_two<T>(w[2], w[3]))};
  }
};

template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <typename T, bool has_zero_point>
void launch(const FewRows& call) {
  const Int8Weight& weight = call.weight;
  const int64_t columns = call.input.size(1), groups = divide_up(columns, weight.group_size);
  const FloatProduct<T, has_zero_point> product{
      .m = call.input.size(0),
      .n = call.output.size(1),
      .k = columns,
      .input = read<T>(call.input),
      .values = read<int8_t>(weight.values),
      .scale = read<float>(weight.scale),
      .zero_point = read<int32_t>(weight.zero_point),
      .groups = groups,
      .group_shift = few_rows::group_shift(columns, weight.group_size),
      .bias = read<T>(call.bias),
      .output = static_cast<T*>(call.output.mutable_data_ptr())};
  int multiprocessors = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                                        c10::cuda::current_device()));
  few_rows::launch(product, multiprocessors, c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

bool has_tensor_cores(const at::Tensor& tensor) {
  int major = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, tensor.get_device()));
  return major >= 8;
}

bool takes(const at::Tensor& input, const at::Tensor& values, int64_t group_size) {
  const at::ScalarType dtype = input.scalar_type();
  const int64_t columns = values.size(1);
  return (dtype == at::kHalf || dtype == at::kBFloat16) && input.size(0) <= kMostRows &&
         columns <= INT32_MAX && few_rows::has_whole_chunks(columns, group_size, kColumns) &&
         is_aligned(input.const_data_ptr(), 16) && is_aligned(values.const_data_ptr(), 16) &&
         has_tensor_cores(input);
}

void few_rows_cuda(const FewRows& call) {
  const c10::cuda::CUDAGuard guard(call.output.device());
  if (only_planned([] {
        KernelPlan plan = cuda_plan<float>("weight_only_linear", "16x64", 0, "float32");
        plan.bit_stable = false;  // a CPU adds in another order
        return plan;
      })) {
    return;
  }
  const bool has_zero_point = call.weight.zero_point.defined();
  if (call.input.scalar_type() == at::kHalf) {
    has_zero_point ? launch<Float16, true>(call) : launch<Float16, false>(call);
  } else {
    has_zero_point ? launch<BFloat16, true>(call) : launch<BFloat16, false>(call);
  }
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&takes, &few_rows_cuda};
  return kernels;
}

}  // namespace baraquant::weight_only
