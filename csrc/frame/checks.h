// SPDX-License-Identifier: BSD-3-Clause
// Argument checks that every op shares, and the wording of their messages:
//   baraquant::op: expected WHAT to be X, but got Y
// ValueError for sizes, ranges and devices, TypeError for dtypes and layouts, IndexError for axes.
// They read dtypes, devices and (symbolic) sizes, never the values in a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <string>

#include "frame/dtypes.h"

namespace baraquant {

// "torch.float32" and the like, as a user writes them. NB: torch.ops takes any int for a dtype.
inline std::string dtype_name(c10::ScalarType dtype) {
  const auto number = static_cast<int>(dtype);
  if (number < 0 || dtype >= c10::ScalarType::Undefined) return "a number that is no dtype";
  return "torch." + std::string(c10::getDtypeNames(dtype).first);
}

// Whether the sizes are equal. It works under tracing too: for an unbacked size it becomes a
// run-time assertion.
inline bool same_size(const c10::SymInt& a, const c10::SymInt& b) {
  return a.sym_eq(b).expect_true(__FILE__, __LINE__);
}

inline bool has_sizes(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!same_size(tensor.sym_size(static_cast<int64_t>(d)), sizes[d])) return false;
  }
  return true;
}

template <typename Op>
void check_strided(const Op& op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name, " to be a tensor, but got none");
  TORCH_CHECK_TYPE(!tensor.is_nested(), op, ": expected ", name,
                   " to be a plain tensor, but got a nested one; use .unbind() or "
                   "torch.nested.to_padded_tensor");
  TORCH_CHECK_TYPE(tensor.layout() == c10::kStrided, op, ": expected ", name,
                   " to be a dense (strided) tensor, but got layout ", tensor.layout(),
                   "; convert it with .to_dense()");
}

// Refuses tensors that the dispatcher would send elsewhere, before a core op is called.
template <typename Op>
void check_dispatchable(const Op& op, const char* name, const at::Tensor& tensor) {
  check_strided(op, name, tensor);
  TORCH_CHECK_TYPE(!tensor.is_quantized(), op, ": expected ", name,
                   " to be a plain tensor, but got the quantized dtype ",
                   c10::toString(tensor.scalar_type()), "; use .int_repr() or .dequantize()");
}

// A tensor that is written must hold its values itself: see frame/lazy_values.cpp.
template <typename Op>
void check_written(const Op& op, const char* name, const at::Tensor& tensor) {
  check_dispatchable(op, name, tensor);
  TORCH_CHECK_TYPE(!tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor(), op,
                   ": expected ", name,
                   " to hold its values, as it is written, but got a tensor that negates, "
                   "conjugates or stands for zeros; take .resolve_neg(), .resolve_conj() or "
                   ".clone() of it");
}

template <typename Op>
void check_floating(const Op& op, const char* name, const at::Tensor& tensor) {
  check_strided(op, name, tensor);
  TORCH_CHECK_TYPE(is_supported_floating(tensor.scalar_type()), op, ": expected ", name,
                   " to be float32, float64, float16 or bfloat16, but got ",
                   dtype_name(tensor.scalar_type()));
}

template <typename Op>
void check_dtype(const Op& op, const char* name, const at::Tensor& tensor, c10::ScalarType expected,
                 const char* why) {
  check_strided(op, name, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == expected, op, ": expected ", name, " to be ",
                   dtype_name(expected), " (", why, "), but got ",
                   dtype_name(tensor.scalar_type()));
}

// Checks a tensor of integers that may have any integer dtype, such as zero points.
template <typename Op>
void check_integer(const Op& op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false), op,
                   ": expected ", name, " to have an integer dtype, but got ",
                   dtype_name(tensor.scalar_type()));
}

// Checks an input of 8-bit integers, which was quantized before.
template <typename Op>
void check_quantized_input(const Op& op, const at::Tensor& input) {
  const c10::ScalarType dtype = input.scalar_type();
  TORCH_CHECK_TYPE(dtype == c10::kChar || dtype == c10::kByte, op,
                   ": expected input to be torch.int8 or torch.uint8 (quantized already), but got ",
                   dtype_name(dtype));
}

// Checks the argument `dtype`, which is that of the output.
template <typename Op>
void check_output_dtype(const Op& op, c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(is_supported_floating(dtype), op,
                   ": expected dtype to be float32, float64, float16 or bfloat16, but got ",
                   dtype_name(dtype));
}

// Checks that the bias has the compute type of the output or the output's dtype.
template <typename Op>
void check_bias_dtype(const Op& op, const at::Tensor& bias, c10::ScalarType dtype) {
  const c10::ScalarType compute = compute_dtype(dtype), got = bias.scalar_type();
  TORCH_CHECK_TYPE(got == compute || got == dtype, op, ": expected bias to be ",
                   dtype_name(compute), dtype == compute ? "" : " or " + dtype_name(dtype),
                   " (the output is ", dtype_name(dtype), "), but got ", dtype_name(got));
}

template <typename Op>
void check_same_device(const Op& op, const char* name, const at::Tensor& tensor,
                       const at::Tensor& input, const char* input_name = "input") {
  TORCH_CHECK_VALUE(tensor.device() == input.device(), op, ": expected ", name, " to be on ",
                    input.device(), " (the ", input_name, "'s device), but got ", tensor.device());
}

// Checks a range of integers, all of which dtype must represent exactly. prefix is put before the
// arguments' names.
template <typename Op>
void check_range(const Op& op, int64_t quant_min, int64_t quant_max, c10::ScalarType dtype,
                 const char* prefix = "") {
  TORCH_CHECK_VALUE(quant_min < quant_max, op, ": expected ", prefix, "quant_min to be less than ",
                    prefix, "quant_max, but got ", quant_min, " and ", quant_max);
  const auto [lowest, highest] = exact_integers(dtype);
  TORCH_CHECK_VALUE(quant_min >= lowest && quant_max <= highest, op, ": expected ", prefix,
                    "quant_min and ", prefix, "quant_max to lie in [", lowest, ", ", highest,
                    "], which ", dtype_name(dtype), " represents exactly, but got ", quant_min,
                    " and ", quant_max);
}

// Checks a scale that is given as a number.
template <typename Op>
void check_scale_number(const Op& op, const char* name, double scale, c10::ScalarType compute) {
  const double used = compute == c10::kDouble ? scale : static_cast<float>(scale);
  TORCH_CHECK_VALUE(std::isfinite(used) && used > 0, op, ": expected ", name,
                    " to be a finite number greater than 0 in ", dtype_name(compute), ", but got ",
                    scale);
}

// Checks a flag that lies on the device and that the host never reads.
template <typename Op>
void check_switch(const Op& op, const char* name, const at::Tensor& tensor,
                  const at::Tensor& input) {
  check_strided(op, name, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == c10::kByte || tensor.scalar_type() == c10::kBool, op,
                   ": expected ", name, " to be torch.uint8 or torch.bool, but got ",
                   dtype_name(tensor.scalar_type()));
  check_same_device(op, name, tensor, input);
  TORCH_CHECK_VALUE(same_size(tensor.sym_numel(), 1), op, ": expected ", name,
                    " to have 1 element, but got shape ", tensor.sym_sizes());
}

template <typename Op>
void check_same_sizes(const Op& op, const char* name, const at::Tensor& tensor,
                      const at::Tensor& input, const char* input_name) {
  bool same = tensor.dim() == input.dim();
  for (int64_t d = 0; same && d < input.dim(); ++d) {
    same = same_size(tensor.sym_size(d), input.sym_size(d));
  }
  TORCH_CHECK_VALUE(same, op, ": expected ", name, " to have shape ", input.sym_sizes(),
                    " (that of ", input_name, "), but got ", tensor.sym_sizes());
}

// Checks an axis of the tensor `name` and returns it counted from the front.
template <typename Op>
int64_t check_axis(const Op& op, int64_t axis, int64_t dim, const char* name = "input") {
  TORCH_CHECK_INDEX(dim > 0, op, ": expected ", name, " to have at least 1 dimension, but got 0");
  TORCH_CHECK_INDEX(axis >= -dim && axis < dim, op, ": expected axis to be in [", -dim, ", ",
                    dim - 1, "] for ", name, " with ", dim, " dimensions, but got ", axis);
  return axis < 0 ? axis + dim : axis;
}

// A tensor that is given beside the input, on its device, and what is expected of it.
struct ExpectedTensor {
  const char* name;
  const at::Tensor& tensor;
  c10::ScalarType dtype;
  const char* why;  // it has this dtype
  c10::SymIntArrayRef sizes;
  const char* sizes_of;  // what else has these sizes
};

template <typename Op>
void check_expected(const Op& op, const ExpectedTensor& expected, const at::Tensor& input) {
  const auto& [name, tensor, dtype, why, sizes, sizes_of] = expected;
  check_dispatchable(op, name, tensor);
  check_dtype(op, name, tensor, dtype, why);
  check_same_device(op, name, tensor, input);
  TORCH_CHECK_VALUE(has_sizes(tensor, sizes), op, ": expected ", name, " to have shape ", sizes,
                    " (", sizes_of, "), but got ", tensor.sym_sizes());
}

// A rule of a call: a function that checks one argument, and how it fits to the others. The rules of
// an op are a table, in the order in which a user hears of mistakes.
template <typename Args>
using Rule = void (*)(const Args&);

template <typename Args, size_t n>
void check_all(const Args& args, const Rule<Args> (&rules)[n]) {
  for (const Rule<Args> rule : rules) rule(args);
}

}  // namespace baraquant
