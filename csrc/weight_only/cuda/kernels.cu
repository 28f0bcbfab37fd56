// SPDX-License-Identifier: BSD-3-Clause
// Some rows of float16 or bfloat16 by a weight that is dequantized in registers (few_rows/few_rows.cuh
// and warpgroup_rows.cuh), and the kernel that dequantizes a packed weight for PyTorch's product of
// more rows, with their device guard, stream and launch check.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "frame/cuda_plan.cuh"
#include "frame/elements.h"
#include "machine/pack.cuh"
#include "weight_only/cuda/float_product.cuh"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

constexpr int kThreads = 256;  // of a block that dequantizes

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
      result.at[j] = from_compute<T>(affine::dequantized_value(w[j], scale[g], zero));
    }
    store(result, target, int64_t(i) * kPacked, kPacked, /*aligned=*/true);
  }
}

template <typename T, bool has_zero_point, bool is_packed>
FloatProduct<T, has_zero_point, is_packed> product_of(const FewRows& call) {
  const IntegerWeight& weight = call.weight;
  const int64_t columns = weight.columns, groups = divide_up(columns, weight.group_size);
  return {.m = call.input.size(0),
          .n = call.output.size(1),
          .k = columns,
          .input = elements<T>(call.input),
          .values = elements<uint8_t>(weight.values),
          .scale = elements<float>(weight.scale),
          .zero_point = elements<int32_t>(weight.zero_point),
          .groups = groups,
          .group_shift = few_rows::group_shift(columns, weight.group_size),
          .bias = elements<T>(call.bias),
          .output = static_cast<T*>(call.output.mutable_data_ptr()),
          .stores_packs = call.output.size(1) % 4 == 0 &&
                          is_aligned(call.output.const_data_ptr(), 4 * sizeof(T))};
}

template <typename T, bool has_zero_point, bool is_packed>
void launch(c10::ArrayRef<FewRows> calls, const at::Tensor& arranged, int multiprocessors) {
  using Product = FloatProduct<T, has_zero_point, is_packed>;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  std::vector<Product> products;
  for (const FewRows& call : calls) {
    products.push_back(product_of<T, has_zero_point, is_packed>(call));
  }
  if (arranged.defined()) {
    warpgroup_rows::launch(products[0], arranged.mutable_data_ptr(), multiprocessors, stream);
  } else {
    few_rows::launch<Product, /*joins=*/true>(products, multiprocessors, stream);
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
  const int64_t rows = input.size(0);
  return (dtype == at::kHalf || dtype == at::kBFloat16) &&
         (rows <= few_rows::kMaxRows || warpgroup_rows::takes(rows)) &&
         weight.columns <= INT32_MAX &&
         few_rows::has_whole_chunks(weight.columns, weight.group_size, kColumns) &&
         is_aligned(input.const_data_ptr(), 16) && is_aligned(weight.values.const_data_ptr(), 16) &&
         has_tensor_cores(input);
}

// Whether warpgroups multiply some rows by a weight of n rows of k numbers, in either form. A large
// weight repays the kernel that arranges the input, as measured on an H100.
bool by_warpgroups(int64_t rows, int64_t n, int64_t k) {
  constexpr int64_t kLarge = 1 << 26;
  const bool repays = rows > few_rows::kTile && rows <= few_rows::kMaxRows && n * k >= kLarge;
  return warpgroup_rows::takes(rows) || (repays && wgmma::is_available());
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
          reinterpret_cast<const uint32_t*>(elements<uint8_t>(weight.values)),
          elements<float>(weight.scale), elements<int32_t>(weight.zero_point), words,
          words_of_group, static_cast<T*>(target.mutable_data_ptr()));
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

// Whether one launch computes some products of an input, each with the order of sums that it has alone.
bool share_launch(c10::ArrayRef<FewRows> calls, int multiprocessors) {
  const auto is_wide = [&](const FewRows& call) {
    return few_rows::is_wide(call.output.size(1), multiprocessors);
  };
  const FewRows& first = calls[0];
  const auto is_like_first = [&](const FewRows& call) {
    return call.weight.is_packed() == first.weight.is_packed() &&
           call.weight.group_size == first.weight.group_size &&
           call.weight.zero_point.defined() == first.weight.zero_point.defined() &&
           is_wide(call) == is_wide(first);
  };
  return first.input.size(0) <= few_rows::kTile &&
         std::all_of(calls.begin(), calls.end(), is_like_first);
}

// One product, or some that share a launch.
void multiply(c10::ArrayRef<FewRows> calls, int multiprocessors) {
  const FewRows& call = calls[0];
  const int64_t rows = call.input.size(0);
  const bool has_warpgroups = by_warpgroups(rows, call.output.size(1), call.weight.columns);
  const int64_t bytes = has_warpgroups ? warpgroup_rows::arranged_bytes(
                                             rows, call.output.size(1), call.weight.columns,
                                             kColumns, 2, multiprocessors)
                                       : 0;
  if (only_planned([&] {
        const char* const tile = has_warpgroups ? "64x128" : "16x128";
        KernelPlan plan = cuda_plan<float>("weight_only_linear", tile, bytes, "float32");
        if (has_warpgroups) plan.architecture += 'a';
        plan.bit_stable = false;  // a CPU adds in another order
        return plan;
      })) {
    return;
  }
  at::Tensor arranged;
  if (has_warpgroups) arranged = at::empty({bytes}, call.input.options().dtype(at::kByte));
  const auto launch_as = [&](auto is_half, auto has_zero_point, auto is_packed) {
    using T = std::conditional_t<is_half(), Float16, BFloat16>;
    launch<T, has_zero_point(), is_packed()>(calls, arranged, multiprocessors);
  };
  with_flags(launch_as, call.input.scalar_type() == at::kHalf, call.weight.zero_point.defined(),
             call.weight.is_packed());
}

void few_rows_cuda(c10::ArrayRef<FewRows> calls) {
  const c10::cuda::CUDAGuard guard(calls[0].output.device());
  int multiprocessors = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                                        c10::cuda::current_device()));
  while (!calls.empty()) {
    const auto next = calls.slice(0, std::min(calls.size(), size_t{kMostTogether}));
    const size_t done = share_launch(next, multiprocessors) ? next.size() : 1;
    multiply(calls.slice(0, done), multiprocessors);
    calls = calls.slice(done);
  }
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&takes, &few_rows_cuda, &dequantizes, &dequantize_cuda};
  return kernels;
}

}  // namespace baraquant::weight_only
