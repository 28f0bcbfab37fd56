// SPDX-License-Identifier: BSD-3-Clause
// Up to 64 rows of float16 or bfloat16 by a weight that is dequantized in registers
// (machine/few_rows.cuh and shared_rows.cuh), and the kernel that dequantizes a packed weight for
// PyTorch's product of more rows, with their device guard, stream and launch check.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "frame/cuda_plan.cuh"
#include "machine/pack.cuh"
#include "machine/shared_rows.cuh"
#include "weight_only/cuda/float_product.cuh"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

constexpr int64_t kMostRows = 64;  // with more, it is faster to dequantize the weight first
constexpr int kThreads = 256;      // of a block that dequantizes

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

// Whether sharing the input's rows is faster. As measured on an H200.
bool shares_rows(int64_t m, int64_t n) { return m > 32 || (m > 16 && n >= 8192); }

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
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  if (shares_rows(product.m, product.n)) {
    shared_rows::launch(product, multiprocessors, stream);
  } else {
    few_rows::launch(product, multiprocessors, stream);
  }
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
  if (only_planned([&] {
        const bool shares = shares_rows(call.input.size(0), call.output.size(1));
        const char* const tile = shares ? "128x64" : "16x32";
        KernelPlan plan = cuda_plan<float>("weight_only_linear", tile, 0, "float32");
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
