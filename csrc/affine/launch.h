// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage types and calls Backend::transform<Op> or
// Backend::qparams_gradient<T>. The CPU and CUDA share it, so that they cover the same types.
#pragma once

#include <ATen/core/Tensor.h>

#include "elementwise/elementwise_ops.h"
#include "elementwise/qparams.h"
#include "frame/dtypes.h"
#include "frame/pointers.h"

namespace baraquant::affine {

// The arguments of an elementwise operation. The tensors are dense and have one memory order, which
// `map` describes; a tensor that the operation does not have is undefined.
struct Call {
  at::Tensor first, second, result, mask;
  at::Tensor scale, zero_point;
  at::Tensor enabled;  // for fake_quantize: one byte; undefined means enabled
  double scale_number = 1;
  int64_t zero_point_number = 0;
  int64_t quant_min = -128, quant_max = 127;
  bool own_range = false;  // Qparams::own_range
  ScaleMap map;
};

template <typename C>
Qparams<C> qparams_of(const Call& call) {
  Qparams<C> q;
  q.scale = read<C>(call.scale);
  if (call.zero_point.defined() && call.zero_point.is_floating_point()) {
    q.learned_zero_point = read<C>(call.zero_point);
  } else {
    q.zero_point = read<int32_t>(call.zero_point);
  }
  q.scale_number = static_cast<C>(call.scale_number);
  q.zero_point_number = static_cast<C>(call.zero_point_number);
  q.range = {static_cast<C>(call.quant_min), static_cast<C>(call.quant_max)};
  q.map = call.map;
  q.own_range = call.own_range;
  q.enabled = read<uint8_t>(call.enabled);
  return q;
}

template <typename Backend>
struct Launch {
  // first: x; result: q; mask: written if defined.
  static void quantize(const Call& call) {
    with_floating_type(call.first.scalar_type(), [&]<typename T>(Type<T>) {
      const auto dtype = call.result.scalar_type();
      if (c10::isIntegralType(dtype, false)) {
        return quantize_to<T, uint8_t>(call);
      }
      using C = ComputeType<T>;
      if (dtype == compute_dtype(dtype) && sizeof(C) == call.result.element_size()) {
        return quantize_to<T, C>(call);
      }
      if constexpr (!std::is_same_v<T, C>) return quantize_to<T, T>(call);
    });
  }

  // first: x; result: y; mask: written if defined.
  static void fake_quantize(const Call& call) {
    with_floating_type(call.first.scalar_type(), [&]<typename T>(Type<T>) {
      if (call.mask.defined()) return run<FakeQuantize<T, Mask::kWrite>>(call);
      run<FakeQuantize<T, Mask::kNone>>(call);
    });
  }

  // first: q in 8 bits or in the compute type; result: y.
  static void dequantize(const Call& call, at::ScalarType compute) {
    with_floating_type(call.result.scalar_type(), [&]<typename Y>(Type<Y>) {
      if (compute == at::kDouble) return dequantize_in<double, Y>(call);
      if constexpr (!std::is_same_v<Y, double>) dequantize_in<float, Y>(call);
    });
  }

  // first: dy in x's dtype or in the compute type; second: x; result: dx.
  static void input_gradient(const Call& call, bool through_quantize) {
    gradient<InputGradient>(call, through_quantize);
  }

  // first: dy in dx's dtype or in the compute type; mask: read; result: dx.
  static void masked_gradient(const Call& call, bool through_quantize) {
    gradient<MaskedGradient>(call, through_quantize);
  }

  // first: dy; second: x; result: dx.
  static void qparams_gradient(const Call& call, const at::Tensor& scale_gradient,
                               const at::Tensor& zero_point_gradient) {
    with_floating_type(call.second.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      const QparamsGradientParams<T> args{read<T>(call.first), read<T>(call.second),
                                          written<T>(call.result), written<C>(scale_gradient),
                                          written<C>(zero_point_gradient)};
      Backend::template qparams_gradient<T>(args, qparams_of<C>(call));
    });
  }

 private:
  template <typename T, typename Q>
  static void quantize_to(const Call& call) {
    if (call.mask.defined()) return run<Quantize<T, Q, Mask::kWrite>>(call);
    run<Quantize<T, Q, Mask::kNone>>(call);
  }

  template <template <typename DY, typename T, bool through_quantize> typename Gradient>
  static void gradient(const Call& call, bool through_quantize) {
    with_floating_type(call.result.scalar_type(), [&]<typename T>(Type<T>) {
      if (!through_quantize) return run<Gradient<T, T, false>>(call);
      if (call.first.scalar_type() == call.result.scalar_type()) {
        return run<Gradient<T, T, true>>(call);
      }
      using C = ComputeType<T>;
      if constexpr (!std::is_same_v<T, C>) run<Gradient<C, T, true>>(call);
    });
  }

  template <typename C, typename Y>
  static void dequantize_in(const Call& call) {
    switch (call.first.scalar_type()) {
      case at::kChar:
        return run<Dequantize<int8_t, Y, C>>(call);
      case at::kByte:
        return run<Dequantize<uint8_t, Y, C>>(call);
      default:
        return run<Dequantize<C, Y, C>>(call);
    }
  }

  template <typename Op>
  static void run(const Call& call) {
    // NB: a mutable pointer even if the mask is only read; its bytes belong to the op alone.
    uint8_t* mask = Op::kMask == Mask::kNone ? nullptr : written<uint8_t>(call.mask);
    Backend::template transform<Op>(read<typename Op::First>(call.first),
                                    read<typename Op::Second>(call.second),
                                    written<typename Op::Result>(call.result), mask,
                                    call.result.numel(), qparams_of<typename Op::C>(call));
  }
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  void (*quantize)(const Call&);
  void (*fake_quantize)(const Call&);
  void (*dequantize)(const Call&, at::ScalarType compute);
  void (*input_gradient)(const Call&, bool through_quantize);
  void (*masked_gradient)(const Call&, bool through_quantize);
  void (*qparams_gradient)(const Call&, const at::Tensor& scale_gradient,
                           const at::Tensor& zero_point_gradient);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::affine
