// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the output's storage type T and calls
// Backend::product<T>(ArrayRef<ProductParams<T>>), where T may be int32_t, or
// Backend::rescale<T>(sums, m, n, Rescaling<ComputeType<T>>, T* output). The CPU and CUDA share it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "frame/dtypes.h"
#include "frame/elements.h"
#include "int4/launch.h"
#include "int8_mm/operands.h"

namespace baraquant::int8_mm {

// All tensors are contiguous and on one device: input [m, k], weight [n, k] and output [m, n] with
// m, n > 0; input_scale and zero_point have 1 or m elements, and undefined means the number below;
// weight_scale, bias and weight_sum are [n]. weight_sum is defined if has_zero_point, unless a
// kernel finds the sums itself. An undefined
// bias means no bias. Scales and bias have the output's compute type. An int32 output is the sums; it
// has neither scales nor a bias. If offsets are defined (int32 [groups]), the product is grouped: the
// weight and the vectors of its rows have a leading dimension of groups.
struct ProductCall {
  at::Tensor input, weight, input_scale, weight_scale, bias, zero_point, weight_sum, output;
  at::Tensor offsets;
  int4::PackedWeight packed;  // in place of weight, if it has values
  double input_scale_number = 1;
  int32_t zero_point_number = 0;
  bool has_zero_point = false;
  bool zero_point_is_wide = false;  // it is none of the input's integers, and int32 still suffices
  bool input_is_newest = false;     // what ran last in the stream wrote the input, not the weight
};

// The last step of a product alone: sums is int32 [m, n], and the rest as in a ProductCall.
struct RescaleCall {
  at::Tensor sums, input_scale, weight_scale, bias, output;
};

template <typename Backend>
struct Launch {
  // The products of an input with some weights, or one.
  static void product(c10::ArrayRef<ProductCall> calls) {
    const auto multiply = [&]<typename T>(Type<T>) {
      c10::SmallVector<ProductParams<T>, 1> products;
      for (const ProductCall& call : calls) {
        products.push_back({operands_of(call), rescaling_of<ComputeType<T>>(call),
                            static_cast<T*>(call.output.mutable_data_ptr())});
      }
      Backend::template product<T>(products);
    };
    const at::ScalarType dtype = calls[0].output.scalar_type();
    dtype == at::kInt ? multiply(Type<int32_t>{}) : with_floating_type(dtype, multiply);
  }

  static void rescale(const RescaleCall& call) {
    with_floating_type(call.output.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      Rescaling<C> r;
      r.input_scale = of_rows<C>(call.input_scale, C(1));
      r.weight_scale = elements<C>(call.weight_scale);
      r.bias = elements<C>(call.bias);
      Backend::template rescale<T>(elements<int32_t>(call.sums), call.sums.size(0),
                                   call.sums.size(1), r,
                                   static_cast<T*>(call.output.mutable_data_ptr()));
    });
  }

 private:
  template <typename T>
  static OfRows<T> of_rows(const at::Tensor& tensor, T number) {
    return {elements<T>(tensor), tensor.defined() && tensor.numel() > 1 ? 1 : 0, number};
  }

  static Operands operands_of(const ProductCall& call) {
    Operands f{call.input.size(0),
               call.output.size(1),
               call.input.size(1),
               call.input.const_data_ptr(),
               call.input.scalar_type() == at::kByte,
               elements<int8_t>(call.weight)};
    f.input_is_newest = call.input_is_newest;
    f.wants_weight_sums = call.has_zero_point && !call.weight_sum.defined();
    if (call.packed.values.defined()) f.packed = call.packed.operands();
    if (call.offsets.defined()) {
      f.groups = call.offsets.size(0);
      f.ends = elements<int32_t>(call.offsets);
    }
    return f;
  }

  template <typename C>
  static Rescaling<C> rescaling_of(const ProductCall& call) {
    Rescaling<C> r;
    r.input_scale = of_rows<C>(call.input_scale, static_cast<C>(call.input_scale_number));
    r.has_zero_point = call.has_zero_point;
    if (call.has_zero_point) {
      if (!call.zero_point_is_wide) r.limit_zero_points(call.input.scalar_type() == at::kByte);
      r.zero_point = of_rows<int32_t>(call.zero_point, call.zero_point_number);
      r.weight_sum = elements<int32_t>(call.weight_sum);
    }
    r.weight_scale = elements<C>(call.weight_scale);
    r.bias = elements<C>(call.bias);
    return r;
  }
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  void (*product)(c10::ArrayRef<ProductCall>);  // of an input with some weights, or one
  // Whether `product` multiplies with the packed weight of this call.
  bool (*takes_packed)(const ProductCall&);
  // Whether `product` finds the sums of the weight's rows as it multiplies.
  bool (*finds_sums)(const ProductCall&);
  // sums[.., n] = sum over k of weight[.., n, k]. The weight is int8 [.., n, k] with at least one
  // row, sums is int32 [.., n]; both are contiguous.
  void (*weight_sums)(const at::Tensor& weight, const at::Tensor& sums);
  void (*rescale)(const RescaleCall&);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::int8_mm
