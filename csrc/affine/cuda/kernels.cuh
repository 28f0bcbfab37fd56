// SPDX-License-Identifier: BSD-3-Clause
// From the ops to the CUDA kernels: device guard, current stream, scratch memory, launch check. The
// elementwise operations are spread over several .cu files, which compile in parallel.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "affine/cuda/qparams_gradient.cuh"
#include "affine/launch.h"
#include "elementwise/cuda.cuh"

namespace baraquant::affine {

struct Cuda {
  template <typename Op>
  static void transform(const typename Op::First* first, const typename Op::Second* second,
                        typename Op::Result* result, uint8_t* mask, int64_t numel,
                        const Qparams<typename Op::C>& q) {
    transform_cuda<Op>(first, second, result, mask, numel, q, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <typename T>
  static void qparams_gradient(const QparamsGradientParams<T>& args,
                               const Qparams<ComputeType<T>>& q) {
    const Segments segments = make_segments(q.map);
    at::Tensor partial;  // the caching allocator frees it in the order of this stream
    if (segments.slices > 1) {
      const int64_t sums = segments.count * segments.slices * (args.zero_point_gradient ? 2 : 1);
      partial = at::empty({sums}, at::TensorOptions().device(at::kCUDA).dtype(at::kDouble));
    }
    qparams_gradient_cuda<T>(args, q, segments,
                             partial.defined() ? partial.mutable_data_ptr<double>() : nullptr,
                             c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

void quantize_cuda(const Call& call);
void fake_quantize_cuda(const Call& call);
void dequantize_cuda(const Call& call, at::ScalarType compute);
void input_gradient_cuda(const Call& call, bool through_quantize);
void masked_gradient_cuda(const Call& call, bool through_quantize);
void qparams_gradient_cuda(const Call& call, const at::Tensor& scale_gradient,
                           const at::Tensor& zero_point_gradient);

}  // namespace baraquant::affine
