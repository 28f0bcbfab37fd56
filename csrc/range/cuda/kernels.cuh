// SPDX-License-Identifier: BSD-3-Clause
// From the ops of the range family to the CUDA kernels: device guard, current stream, scratch
// memory, launch check. The kernels are spread over several .cu files, which compile in parallel.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "range/cuda/reduce.cuh"
#include "range/cuda/rows.cuh"
#include "range/launch.h"

namespace baraquant::range {

struct Cuda {
  template <typename T>
  static void choose(const ChooseParams<T>& args) {
    reduce<T>(args, {args.rule, args.scale, args.zero_point});
  }

  template <typename T>
  static void observe(const ObserveParams<T>& args) {
    const ChooseParams<T>& choose = args.choose;
    reduce<T>(choose, {choose.rule, choose.scale, choose.zero_point, args.min, args.max,
                       args.enabled, args.averaging_constant, args.skipped_batches});
  }

  template <typename Op>
  static bool one_pass(const ChooseParams<typename Op::First>& args, typename Op::Result* result,
                       uint8_t* mask) {
    const RowsParams<Op> rows{args.input, result,     mask,           args.segments,
                              args.rule,  args.scale, args.zero_point};
    const bool done =
        rows_cuda<Op>(rows, c10::cuda::current_device(), c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return done;
  }

 private:
  template <typename T>
  static void reduce(const ChooseParams<T>& args, const Outcome<T>& outcome) {
    ReduceParams<T> plan =
        plan_reduce<T>(args.input, args.segments, outcome, chip_of(c10::cuda::current_device()));
    at::Tensor partial;  // the caching allocator frees it in the order of this stream
    if (const int64_t partials = partials_of(plan); partials > 0) {
      const auto bytes = at::TensorOptions().device(at::kCUDA).dtype(at::kByte);
      partial = at::empty({partials * static_cast<int64_t>(sizeof(Extremes<T>))}, bytes);
      plan.partial = static_cast<Extremes<T>*>(partial.mutable_data_ptr());
    }
    at::Tensor skipped;
    if (counts_apart(plan)) {
      const auto bytes = at::TensorOptions().device(at::kCUDA).dtype(at::kByte);
      skipped = at::empty({args.segments.count}, bytes);
      plan.outcome.skipped = static_cast<uint8_t*>(skipped.mutable_data_ptr());
    }
    reduce_cuda<T>(plan, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

void choose_cuda(const RangeCall& call);
bool quantize_cuda(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask);
bool fake_quantize_cuda(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask);
void observe_cuda(const ObserveCall& call);

}  // namespace baraquant::range
