// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type and calls Backend::choose<T>,
// Backend::one_pass<Op> or Backend::observe<T>. The CPU and CUDA share it.
#pragma once

#include <ATen/core/Tensor.h>

#include "elementwise/elementwise_ops.h"
#include "frame/dtypes.h"
#include "frame/pointers.h"
#include "granularity/segments.h"
#include "range/math.h"

namespace baraquant::range {

// The input is dense and not empty, and `map` describes it. scale and zero_point are written, in
// the order of the input's memory.
struct RangeCall {
  at::Tensor input, scale, zero_point;
  ScaleMap map;
  RowScheme scheme;
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
    return one_pass_of<QuantizeToBytes>(call, result, mask);
  }

  static bool fake_quantize(const RangeCall& call, const at::Tensor& result,
                            const at::Tensor& mask) {
    return one_pass_of<affine::FakeQuantize>(call, result, mask);
  }

  static void observe(const ObserveCall& call) {
    with_floating_type(call.range.input.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      Backend::template observe<T>({args_of<T>(call.range), written<C>(call.min),
                                    written<C>(call.max), read<uint8_t>(call.enabled),
                                    static_cast<C>(call.averaging_constant),
                                    written<int64_t>(call.skipped_batches)});
    });
  }

 private:
  template <typename T>
  static ChooseParams<T> args_of(const RangeCall& call) {
    using C = ComputeType<T>;
    return {read<T>(call.input),
            call.input.numel(),
            call.map,
            make_segments(call.map),
            Rule<C>(call.scheme),
            written<C>(call.scale),
            written<int32_t>(call.zero_point)};
  }

  template <typename T, affine::Mask mask>
  using QuantizeToBytes = affine::Quantize<T, uint8_t, mask>;

  template <template <typename T, affine::Mask mask> typename Op>
  static bool one_pass_of(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
    using affine::Mask;
    bool done = false;
    with_floating_type(call.input.scalar_type(), [&]<typename T>(Type<T>) {
      done = mask.defined() ? one_pass<Op<T, Mask::kWrite>>(call, result, mask)
                            : one_pass<Op<T, Mask::kNone>>(call, result, mask);
    });
    return done;
  }

  template <typename Op>
  static bool one_pass(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
    const auto args = args_of<typename Op::First>(call);
    // Each byte of a mask must belong to one segment.
    if (!are_rows(args.segments)) return false;
    if (Op::kMask != affine::Mask::kNone && !start_at_multiples(args.segments, 8)) return false;
    return Backend::template one_pass<Op>(args, written<typename Op::Result>(result),
                                          written<uint8_t>(mask));
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
