// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type and calls Backend::choose<T>,
// Backend::one_pass<Op> or Backend::observe<T>. The CPU and CUDA share it.
#pragma once

#include <ATen/core/Tensor.h>

#include "elementwise/elementwise_ops.h"
#include "frame/dtypes.h"
#include "granularity/segments.h"
#include "range/math.h"

namespace baraquant::range {

// The input is dense and not empty, and `map` describes it. scale and zero_point are written, in
// the order of the input's memory.
struct RangeCall {
  at::Tensor input, scale, zero_point;
  ScaleMap map;
  int64_t quant_min = -128, quant_max = 127;
  bool symmetric = true;
};

// All tensors are contiguous and on the input's device. If `enabled` (one byte) is undefined or not
// 0, the running range is updated, and scale and zero_point, if defined, are chosen from it.
// skipped_batches, if defined, goes up by 1 if any of the ranges left the batch out.
struct ObserveCall {
  RangeCall range;
  at::Tensor min, max, enabled, skipped_batches;
  double averaging_constant = -1;  // negative: the extremes of all batches
};

template <typename T>
struct ChooseParams {
  using C = ComputeType<T>;
  const T* input;
  int64_t numel;
  ScaleMap map;
  Segments segments;  // make_segments(map)
  Rule<C> rule;
  C* scale;             // null means not wanted
  int32_t* zero_point;  // null means not wanted
};

template <typename T>
struct ObserveParams {
  using C = ComputeType<T>;
  ChooseParams<T> choose;
  C* min;
  C* max;
  const uint8_t* enabled;  // null means enabled
  C averaging_constant;
  int64_t* skipped_batches;  // null means not counted
};

template <typename Backend>
struct Launch {
  static void choose(const RangeCall& call) {
    with_floating_type(call.input.scalar_type(),
                       [&]<typename T>(Type<T>) { Backend::template choose<T>(args_of<T>(call)); });
  }

  static bool quantize(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
    using affine::Mask;
    bool done = false;
    with_floating_type(call.input.scalar_type(), [&]<typename T>(Type<T>) {
      done = mask.defined()
                 ? one_pass<affine::Quantize<T, uint8_t, Mask::kWrite>>(call, result, mask)
                 : one_pass<affine::Quantize<T, uint8_t, Mask::kNone>>(call, result, mask);
    });
    return done;
  }

  static bool fake_quantize(const RangeCall& call, const at::Tensor& result,
                            const at::Tensor& mask) {
    bool done = false;
    with_floating_type(call.input.scalar_type(), [&]<typename T>(Type<T>) {
      done = mask.defined()
                 ? one_pass<affine::FakeQuantize<T, affine::Mask::kWrite>>(call, result, mask)
                 : one_pass<affine::FakeQuantize<T, affine::Mask::kNone>>(call, result, mask);
    });
    return done;
  }

  static void observe(const ObserveCall& call) {
    with_floating_type(call.range.input.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      const auto* enabled = call.enabled.defined()
                                ? static_cast<const uint8_t*>(call.enabled.const_data_ptr())
                                : nullptr;
      Backend::template observe<T>(
          {args_of<T>(call.range), pointer<C>(call.min), pointer<C>(call.max), enabled,
           static_cast<C>(call.averaging_constant), pointer<int64_t>(call.skipped_batches)});
    });
  }

 private:
  template <typename T>
  static T* pointer(const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
  }

  template <typename T>
  static ChooseParams<T> args_of(const RangeCall& call) {
    using C = ComputeType<T>;
    return {static_cast<const T*>(call.input.const_data_ptr()),
            call.input.numel(),
            call.map,
            make_segments(call.map),
            Rule<C>(call.quant_min, call.quant_max, call.symmetric),
            pointer<C>(call.scale),
            pointer<int32_t>(call.zero_point)};
  }

  template <typename Op>
  static bool one_pass(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
    const auto args = args_of<typename Op::First>(call);
    // Each byte of a mask must belong to one segment.
    if (!are_rows(args.segments)) return false;
    if (Op::kMask != affine::Mask::kNone && !start_at_multiples(args.segments, 8)) return false;
    return Backend::template one_pass<Op>(args, pointer<typename Op::Result>(result),
                                          pointer<uint8_t>(mask));
  }
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  void (*choose)(const RangeCall&);
  // These two compute the scales and the result while they read the input once. They return false,
  // having done nothing, if the segments do not allow that.
  bool (*quantize)(const RangeCall&, const at::Tensor& result, const at::Tensor& mask);
  bool (*fake_quantize)(const RangeCall&, const at::Tensor& result, const at::Tensor& mask);
  void (*observe)(const ObserveCall&);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::range
