// SPDX-License-Identifier: BSD-3-Clause
// Few rows of float16 or bfloat16 by a weight that is dequantized in registers
// (machine/few_rows.cuh), and the kernel that dequantizes a packed weight for PyTorch's product of
// more rows, with their device guard, stream and launch check.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "affine/math.h"
#include "frame/cuda_plan.cuh"
#include "int4/math.h"
#include "machine/few_rows.cuh"
#include "machine/pack.cuh"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

constexpr int64_t kMostRows = 64;  // with more, it is faster to dequantize the weight first
constexpr int kThreads = 256;      // of a block that dequantizes
constexpr int kPacked = 8;         // numbers of four bits in a word

constexpr int kColumns = 32;  // that a thread multiplies in a step

// From a byte of a word, as the float 2^23 and that byte: exact, and faster than a conversion.
template <int zero>
__device__ __forceinline__ float float_of_byte(uint32_t word, int byte) {
  const uint32_t bits = __byte_perm(word, 0x4b000000u, 0x7540u | static_cast<unsigned>(byte));
  return __uint_as_float(bits) - (8388608.f + zero);
}

// The four numbers of a word of int8.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) q[i] = float_of_byte<128>(word ^ 0x80808080u, i);
}

// The eight numbers of a packed word.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[kPacked]) {
  const uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[2 * i] = float_of_byte<int4::kMiddle>(even, i);
    q[2 * i + 1] = float_of_byte<int4::kMiddle>(odd, i);
  }
}

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

// NB: both forms of a weight are multiplied in the same order, so they give the same bits.
template <typename T, bool has_zero_point, bool is_packed>
struct FloatProduct {
  static constexpr int kColumns = weight_only::kColumns;
  static constexpr int kWeightWords = is_packed ? 1 : 2, kInputWords = 4;
  using Sum = float;

  int64_t m, n, k;
  const T* input;             // [m, k]
  const uint8_t* values;      // [n, k] int8, or [n, k / 2]
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
    return {values + row * (k / kColumns) * (16 * kWeightWords), scale + row * groups,
            has_zero_point ? zero_point + row * groups : nullptr, group_shift};
  }

  template <int tiles>
  static __device__ __forceinline__ void multiply(float (&sums)[tiles][4],
                                                  const uint4 (&words)[2][kWeightWords],
                                                  const Group (&groups)[2],
                                                  const uint4 (&input)[tiles][kInputWords]) {
#pragma unroll
    for (int i = 0; i < 4 * kWeightWords; ++i) {
      uint32_t a[kPairs], b[kPairs];
      dequantize(few_rows::word_of(words[0][i / 4], i % 4), groups[0], a);
      dequantize(few_rows::word_of(words[1][i / 4], i % 4), groups[1], b);
#pragma unroll
      for (int j = 0; j < kPairs; j += 2) {
        const uint32_t w[4] = {a[j], b[j], a[j + 1], b[j + 1]};
        const int at = i * kPairs + j;  // the word of the input
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
          const uint4& columns = input[t][at / 4];
          multiply_fragments<T>(sums[t], w, few_rows::word_of(columns, at % 4),
                                few_rows::word_of(columns, at % 4 + 1));
        }
      }
    }
  }

  __device__ __forceinline__ void write(int64_t row, int64_t column, float sum) const {
    const float result = bias ? sum + to_compute<float>(bias[column]) : sum;
    output[row * n + column] = from_compute<T>(result);
  }

 private:
  static constexpr int kPairs = is_packed ? 4 : 2;  // of numbers, in a word of the weight

  static __device__ __forceinline__ void dequantize(uint32_t word, const Group& group,
                                                    uint32_t (&pairs)[kPairs]) {
    float w[2 * kPairs];
    widen(word, w);
#pragma unroll
    for (float& number : w) number = affine::dequantize(number, group.scale, group.zero_point);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i] = static_cast<uint32_t>(word_of_two<T>(w[2 * i], w[2 * i + 1]));
    }
  }
};

// A packed weight as numbers of T: a block takes a row, a thread a word at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_packed_kernel(const uint32_t* packed, const float* scale, const int32_t* zero_point,
                             uint32_t words, uint32_t words_of_group, T* target) {
  const uint32_t groups = divide_up(words, words_of_group);
  packed += int64_t(blockIdx.x) * words;
  scale += int64_t(blockIdx.x) * groups;
  if (zero_point) zero_point += int64_t(blockIdx.x) * groups;
  target += int64_t(blockIdx.x) * words * kPacked;
  for (uint32_t i = threadIdx.x; i < words; i += kThreads) {
    const uint32_t g = i / words_of_group;
    const float zero = zero_point ? static_cast<float>(zero_point[g]) : 0.f;
    float w[kPacked];
    widen(packed[i], w);
    Pack<T, kPacked> result;
#pragma unroll
    for (int j = 0; j < kPacked; ++j) {
      result.at[j] = from_compute<T>(affine::dequantize(w[j], scale[g], zero));
    }
    store(result, target, int64_t(i) * kPacked, kPacked, /*aligned=*/true);
  }
}

template <typename T>
const T* read(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <typename T, bool has_zero_point, bool is_packed>
void launch(const FewRows& call) {
  const IntegerWeight& weight = call.weight;
  const int64_t columns = weight.columns, groups = divide_up(columns, weight.group_size);
  const FloatProduct<T, has_zero_point, is_packed> product{
      .m = call.input.size(0),
      .n = call.output.size(1),
      .k = columns,
      .input = read<T>(call.input),
      .values = read<uint8_t>(weight.values),
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

bool takes(const at::Tensor& input, const IntegerWeight& weight) {
  const at::ScalarType dtype = input.scalar_type();
  return (dtype == at::kHalf || dtype == at::kBFloat16) && input.size(0) <= kMostRows &&
         weight.columns <= INT32_MAX &&
         few_rows::has_whole_chunks(weight.columns, weight.group_size, kColumns) &&
         is_aligned(input.const_data_ptr(), 16) && is_aligned(weight.values.const_data_ptr(), 16) &&
         has_tensor_cores(input);
}

bool dequantizes(const IntegerWeight& weight, at::ScalarType dtype) {
  return weight.is_packed() &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) &&
         weight.columns <= INT32_MAX && weight.columns % kPacked == 0 &&
         (weight.group_size >= weight.columns || weight.group_size % kPacked == 0) &&
         is_aligned(weight.values.const_data_ptr(), 4);
}

template <typename T>
void launch_dequantize(const IntegerWeight& weight, const at::Tensor& target) {
  const auto words = static_cast<uint32_t>(weight.columns / kPacked);
  const auto words_of_group = static_cast<uint32_t>(divide_up(weight.group_size, kPacked));
  dequantize_packed_kernel<T>
      <<<static_cast<unsigned>(target.size(0)), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
          reinterpret_cast<const uint32_t*>(read<uint8_t>(weight.values)),
          read<float>(weight.scale), read<int32_t>(weight.zero_point), words, words_of_group,
          static_cast<T*>(target.mutable_data_ptr()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void dequantize_cuda(const IntegerWeight& weight, const at::Tensor& target) {
  const c10::cuda::CUDAGuard guard(target.device());
  if (only_planned([] { return cuda_plan<float>("dequantize_packed", "1x8"); })) return;
  switch (target.scalar_type()) {
    case at::kHalf:
      return launch_dequantize<Float16>(weight, target);
    case at::kBFloat16:
      return launch_dequantize<BFloat16>(weight, target);
    default:
      return launch_dequantize<float>(weight, target);
  }
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
  const auto launch_as = [&]<typename T, bool is_packed>() {
    call.weight.zero_point.defined() ? launch<T, true, is_packed>(call)
                                     : launch<T, false, is_packed>(call);
  };
  const auto launch_for = [&]<typename T>() {
    call.weight.is_packed() ? launch_as.template operator()<T, true>()
                            : launch_as.template operator()<T, false>();
  };
  if (call.input.scalar_type() == at::kHalf) {
    launch_for.template operator()<Float16>();
  } else {
    launch_for.template operator()<BFloat16>();
  }
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&takes, &few_rows_cuda, &dequantizes, &dequantize_cuda};
  return kernels;
}

}  // namespace baraquant::weight_only
