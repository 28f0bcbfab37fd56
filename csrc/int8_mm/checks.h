// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the integer matrix family, run before any kernel on every device and under
// tracing; and the one view of the arguments of all its ops, which they and dispatch.cpp read.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "int4/core_ops.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/integer_backward.h"

namespace baraquant::int8_mm {

inline const at::Tensor* pointer(const OptionalTensor& tensor) {
  return tensor ? &*tensor : nullptr;
}

// The given scale and zero point of an input: tensors, or numbers. Null is what is a number, or what
// the call leaves out.
struct InputQparams {
  const char *scale_name = "input_scale", *zero_point_name = "input_zero_point";
  bool scale_per_token = true, zero_point_per_token = true;  // whether each token may have its own
  const at::Tensor *scale = nullptr, *zero_point = nullptr;
  double scale_number = 1;
  std::optional<int64_t> zero_point_number = std::nullopt;

  bool has_zero_point() const { return zero_point || zero_point_number; }
  void set_scale(const at::Tensor& tensor) { scale = &tensor; }
  void set_scale(double number) { scale_number = number; }
  void set_zero_point(const OptionalTensor& tensor) { zero_point = pointer(tensor); }
  void set_zero_point(std::optional<int64_t> number) { zero_point_number = number; }
};

// The arguments of any op of the family. Null is what the op does not have, or the call leaves out.
struct LinearArgs {
  const char* op;
  Kind kind;
  const at::Tensor& input;
  const at::Tensor& weight;  // of kRescaling the input, whose last dimension are the outputs
  const at::Tensor *weight_scale = nullptr, *bias = nullptr, *weight_sum = nullptr;
  const at::Tensor* smooth_scale = nullptr;
  const at::Tensor* offsets = nullptr;  // of a grouped op, whose weight has three dimensions
  std::optional<int4::Groups> int4 = std::nullopt;  // of a weight of packed numbers of four bits
  InputQparams qparams = {};
  RowScheme scheme = {}, weight_scheme = {};  // of a floating input, and of a floating weight
  GivenWeight given = {};
  at::ScalarType dtype = at::kInt;  // of the output

  bool has_weight() const { return kind != Kind::kRescaling; }
  const char* weight_name() const { return int4 ? "packed" : "weight"; }
  // The inputs of a dot product. An int4 op needs an input with a dimension.
  c10::SymInt depth() const { return int4 ? input.sym_size(-1) : weight.sym_size(-1); }
  bool is_grouped() const { return offsets != nullptr; }
};

template <typename Call>
const at::Tensor& weight_of(const Call& call) {
  if constexpr (requires { call.packed; }) {
    return call.packed;
  } else if constexpr (requires { call.weight.offsets; }) {
    return call.weight.values;
  } else if constexpr (requires { call.weight; }) {
    return call.weight;
  } else {
    return call.input;
  }
}

template <typename Options>
void set_options(const Options& options, LinearArgs& args) {
  args.weight_sum = pointer(options.weight_sum);
  if constexpr (requires { options.zero_point; }) args.qparams.set_zero_point(options.zero_point);
  if constexpr (requires { options.smooth_scale; }) {
    args.smooth_scale = pointer(options.smooth_scale);
  }
  if constexpr (requires { options.quant_min; }) {
    args.scheme.quant_min = options.quant_min;
    args.scheme.quant_max = options.quant_max;
    args.dtype = options.dtype.value_or(args.input.scalar_type());
  } else if constexpr (requires { options.dtype; }) {
    args.dtype = options.dtype;
  }
  if constexpr (requires { options.symmetric; }) args.scheme.symmetric = options.symmetric;
}

// The view of a call. The call has to outlive it.
template <typename Call>
LinearArgs linear(const Call& call, const GivenWeight& given = {}) {
  LinearArgs args{.op = Call::kOp,
                  .kind = Call::kKind,
                  .input = call.input,
                  .weight = weight_of(call),
                  .given = given};
  if constexpr (requires { call.weight_scale; }) args.weight_scale = &call.weight_scale;
  if constexpr (requires { call.bias; }) args.bias = pointer(call.bias);
  if constexpr (requires { call.weight.offsets; }) args.offsets = &call.weight.offsets;
  if constexpr (requires { call.packed; }) {
    args.int4.emplace(int4::Groups{call.group_factor, call.group_zero_point, call.group_size});
  }
  if constexpr (requires { call.input_scale; }) args.qparams.set_scale(call.input_scale);
  if constexpr (requires { call.act_scale; }) {
    args.qparams.scale_name = "act_scale";
    args.qparams.zero_point_name = "act_zero_point";
    args.qparams.scale_per_token = false;
    args.qparams.zero_point_per_token = Call::kKind == Kind::kProduct;
    args.qparams.set_scale(call.act_scale);
  }
  if constexpr (requires { call.dtype; }) args.dtype = call.dtype;
  if constexpr (requires { call.schemes; }) {
    args.scheme = call.schemes.input();
    args.weight_scheme = call.schemes.weight();
    args.dtype = call.input.scalar_type();
  }
  if constexpr (requires { call.options; }) set_options(call.options, args);
  return args;
}

// Checks that a tensor has one element, without dimensions or with one.
void check_single(const char* op, const char* name, const at::Tensor& tensor);

// Checks all tensors in args. NB: autograd calls it too. Otherwise Python would refuse a nested
// tensor of jagged layout under the name of the op that comes next.
void check_all_dispatchable(const LinearArgs& args);
// The same, and that a constant, such as a scale, does not require grad: autograd's check.
void check_constants(const LinearArgs& args);
// Checks all arguments.
void check_arguments(const LinearArgs& args);
void check_backward(const LinearArgs& args, const BackwardArgs& backward);
// Checks the values of a grouped op's offsets if they are on the CPU.
void check_offset_values(const LinearArgs& args);

void check_integer_backward(const at::Tensor& grad, const IntegerBackwardArgs& args);

}  // namespace baraquant::int8_mm
