// SPDX-License-Identifier: BSD-3-Clause
#include "weight_only/checks.h"

#include "frame/checks.h"
#include "int4/checks.h"

namespace baraquant::weight_only {
namespace {

void check_integers(const at::Tensor& input, const Weight& weight) {
  const at::Tensor& values = weight.values;
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK_TYPE(dtype == at::kChar || dtype == at::kByte, kOp,
                   ": expected weight to have dtype int8 (quantized weights) or uint8 (two numbers "
                   "of four bits in a byte), but got ",
                   dtype_name(dtype));
  TORCH_CHECK_VALUE(values.dim() == 2, kOp, ": expected weight to have 2 dimensions ",
                    weight.is_packed() ? "[N, ceil(K / 2)]" : "[N, K]", ", but got shape ",
                    values.sym_sizes());
  TORCH_CHECK_VALUE(values.is_contiguous(), kOp,
                    ": expected weight to be contiguous (row by row), but got strides ",
                    values.sym_strides(), "; call .contiguous() once, where the weight is stored");
  check_same_device(kOp, "weight", values, input);
  TORCH_CHECK_VALUE(input.dim() >= 1, kOp,
                    ": expected input to have at least 1 dimension, but got 0");
  if (weight.is_packed()) {
    return int4::check_packed(kOp, "weight", values, input.sym_size(-1), "input.size(-1)");
  }
  const c10::SymInt columns = values.sym_size(1);
  TORCH_CHECK_VALUE(same_size(input.sym_size(-1), columns), kOp,
                    ": expected input to have shape [..., ", columns,
                    "] (weight.size(1) last), but got ", input.sym_sizes());
}

void check_qparams(const at::Tensor& input, const Weight& weight) {
  const auto sizes = scale_sizes({weight.values.sym_size(0), input.sym_size(-1)}, weight.scope());
  const auto check_shape = [&](const char* name, const at::Tensor& tensor) {
    check_same_device(kOp, name, tensor, input);
    TORCH_CHECK_VALUE(has_sizes(tensor, sizes), kOp, ": expected ", name, " to have shape ",
                      c10::SymIntArrayRef(sizes),
                      weight.group_size ? " (a row for each output, a column for each group)"
                                        : " (weight.size(0))",
                      ", but got ", tensor.sym_sizes());
  };
  check_dtype(kOp, "weight_scale", weight.scale, compute_dtype(input.scalar_type()),
              "the compute type of the input");
  check_shape("weight_scale", weight.scale);
  if (!weight.zero_point) return;
  check_integer(kOp, "weight_zero_point", *weight.zero_point);
  check_shape("weight_zero_point", *weight.zero_point);
}

}  // namespace

void check_linear(const LinearArgs& args) {
  const at::Tensor& input = args.input;
  weight_only_linear.check_dispatchable(args);
  check_floating(kOp, "input", input);
  check_integers(input, args.integers());
  if (args.group_size) {
    TORCH_CHECK_VALUE(args.group_size->sym_gt(0).expect_true(__FILE__, __LINE__), kOp,
                      ": expected group_size to be greater than 0, but got ", *args.group_size);
  }
  check_qparams(input, args.integers());
  if (!args.bias) return;
  const c10::SymInt outputs = args.weight.sym_size(0);
  check_expected(
      kOp,
      {"bias", *args.bias, input.scalar_type(), "the input's dtype", outputs, "weight.size(0)"},
      input);
}

}  // namespace baraquant::weight_only
