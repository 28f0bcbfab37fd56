// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type and calls Backend::norm<T>,
// Backend::activation<T> or Backend::hadamard<T>. The CPU and CUDA share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

#include "frame/dtypes.h"
#include "frame/pointers.h"
#include "fused/rows.h"

namespace baraquant::fused {

// What becomes of the rows. If `values` is defined, they are quantized, each with the scale of its
// own data, and `output` is undefined. All are contiguous.
struct Outputs {
  at::Tensor output = {};
  at::Tensor values = {}, scale = {}, zero_point = {};
  range::RowScheme scheme = {};
};

// `input`, `residual` and `up` are [rows, length]; the elements of a row are neighbours. Undefined
// tensors are absent.
struct Call {
  at::Tensor input;
  Outputs to;
};

struct NormCall : Call {
  at::Tensor residual, residual_out, weight, bias;
  double eps = 0;
  bool centered = false;
};

struct ActivationCall : Call {
  at::Tensor up;
  Activation activation = Activation::kSiluMul;
};

struct HadamardCall : Call {
  int64_t block = 1;
};

template <typename Backend>
struct Launch {
  static bool norm(const NormCall& call) {
    bool done = false;
    with_floating_type(call.input.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      done = Backend::template norm<T>(
          {rows_of<T>(call), source<T>(call.residual), written<T>(call.residual_out),
           vector<C>(call.weight), vector<C>(call.bias), static_cast<C>(call.eps), call.centered});
    });
    return done;
  }

  static bool activation(const ActivationCall& call) {
    bool done = false;
    const auto launch = [&]<typename T>(Type<T>) {
      done =
          Backend::template activation<T>({rows_of<T>(call), source<T>(call.up), call.activation});
    };
    with_single_type(call.input.scalar_type(), launch);
    return done;
  }

  static bool hadamard(const HadamardCall& call) {
    bool done = false;
    with_floating_type(call.input.scalar_type(), [&]<typename T>(Type<T>) {
      done = Backend::template hadamard<T>(
          {rows_of<T>(call), call.block, static_cast<ComputeType<T>>(1.0 / std::sqrt(call.block))});
    });
    return done;
  }

 private:
  template <typename F>
  static void with_single_type(at::ScalarType dtype, const F& f) {
    switch (dtype) {
      case at::kFloat:
        return f(Type<float>{});
      case at::kHalf:
        return f(Type<Float16>{});
      default:
        return f(Type<BFloat16>{});
    }
  }

  template <typename T>
  static Source<T> source(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    return {static_cast<const T*>(tensor.const_data_ptr()), tensor.stride(0)};
  }

  template <typename C>
  static Vector<C> vector(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    return {tensor.const_data_ptr(), compute_dtype(tensor.scalar_type()) == tensor.scalar_type()};
  }

  template <typename T>
  static Rows<T> rows_of(const Call& call) {
    using C = ComputeType<T>;
    const Outputs& to = call.to;
    Rows<T> rows;
    rows.count = call.input.size(0);
    rows.length = call.input.size(1);
    rows.input = source<T>(call.input);
    rows.output = written<T>(to.output);
    rows.values = written<uint8_t>(to.values);
    rows.scale = written<C>(to.scale);
    rows.zero_point = written<int32_t>(to.zero_point);
    rows.rule = range::Rule<C>(to.scheme);
    return rows;
  }
};

// The kernels of a device, as dispatch.cpp calls them. They return false, having done nothing, if
// the rows are quantized and too long for the device to hold one.
struct Kernels {
  bool (*norm)(const NormCall&);
  bool (*activation)(const ActivationCall&);
  bool (*hadamard)(const HadamardCall&);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::fused
