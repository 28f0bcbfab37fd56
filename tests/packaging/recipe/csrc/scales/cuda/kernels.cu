// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernel of the scales family, with its device guard, stream and launch check.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "frame/cuda_plan.cuh"
#include "machine/integers.h"
#include "scales/launch.h"
#include "scales/math.h"

namespace baraquant::scales {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

template <typename T>
__global__ void __launch_bounds__(kThreads) round_kernel(const T* from, T* to, int64_t count) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = nearest_power_of_two(from[i]);
  }
}

struct Cuda {
  template <typename T>
  static void round(const T* from, T* to, int64_t count) {
    if (only_planned([] { return cuda_plan<ComputeType<T>>("round_to_power_of_two", "256"); })) {
      return;
    }
    const auto blocks = static_cast<unsigned>(std::min(divide_up(count, kThreads), kMaxBlocks));
    round_kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(from, to, count);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

void round_scales(const at::Tensor& scale, const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(scale.device());
  Launch<Cuda>::round(scale, result);
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&round_scales};
  return kernels;
}

}  // namespace baraquant::scales
