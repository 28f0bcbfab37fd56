// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the affine family: one for each direction, on which autograd, CPU, CUDA and Meta
// are registered once. Their schemas are flat:
//   (Tensor first, Tensor? scale, Tensor? zero_point, float scale_number, int zero_point_number,
//    int granularity, int axis, SymInt group_size, int quant_min, int quant_max, ...)
// CoreOp calls one through the dispatcher; Flat turns a function that takes QuantArgs into a kernel
// of such a schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <tuple>

#include "granularity/arguments.h"

namespace baraquant::affine {

template <typename R, typename... Extra>
class CoreOp {
 public:
  explicit CoreOp(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>()) {}

  R operator()(const at::Tensor& first, const QuantArgs& q, Extra... extra) const {
    return handle_.call(first, q.scale, q.zero_point, q.scale_number, q.zero_point_number,
                        static_cast<int64_t>(q.granularity), q.axis, q.group_size, q.quant_min,
                        q.quant_max, std::forward<Extra>(extra)...);
  }

 private:
  using Signature = R(const at::Tensor&, const OptionalTensor&, const OptionalTensor&, double,
                      int64_t, int64_t, int64_t, c10::SymInt, int64_t, int64_t, Extra...);
  c10::TypedOperatorHandle<Signature> handle_;
};

template <auto function>
struct Flat;

template <typename R, typename... Extra,
          R (*function)(const at::Tensor&, const QuantArgs&, Extra...)>
struct Flat<function> {
  static R kernel(const at::Tensor& first, const OptionalTensor& scale,
                  const OptionalTensor& zero_point, double scale_number, int64_t zero_point_number,
                  int64_t granularity, int64_t axis, c10::SymInt group_size, int64_t quant_min,
                  int64_t quant_max, Extra... extra) {
    return function(first,
                    QuantArgs{scale, zero_point, scale_number, zero_point_number,
                              checked_granularity(granularity), axis,
                              limited_group_size(std::move(group_size)), quant_min, quant_max},
                    std::forward<Extra>(extra)...);
  }
};

using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Through the dispatcher. What each computes stands with its schema in schema.cpp.
at::Tensor quantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                    std::optional<bool> save_mask);
at::Tensor fake_quantize(const at::Tensor& input, const QuantArgs& q, std::optional<bool> save_mask,
                         const OptionalTensor& enabled = {});
at::Tensor dequantize(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype);
TensorPair quantize_with_mask(const at::Tensor& input, const QuantArgs& q, at::ScalarType dtype,
                              at::IntArrayRef order);
TensorPair fake_quantize_with_mask(const at::Tensor& input, const QuantArgs& q,
                                   at::IntArrayRef order, const OptionalTensor& enabled = {});
at::Tensor input_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                          bool through_quantize);
at::Tensor masked_gradient(const at::Tensor& grad, const QuantArgs& q, const at::Tensor& mask,
                           at::IntArrayRef order, at::ScalarType dtype, bool through_quantize);
TensorTriple qparams_gradient(const at::Tensor& input, const QuantArgs& q, const at::Tensor& grad,
                              bool zero_point_gradient);

}  // namespace baraquant::affine
