// SPDX-License-Identifier: BSD-3-Clause
#include "affine/checks.h"

#include <limits>
#include <string>
#include <vector>

#include "frame/checks.h"

namespace baraquant::affine {

namespace {

// Checks a scale or a zero point against the shape that its granularity asks for. axis: counted from
// the front.
void check_shape(const OpName& op, const char* name, const at::Tensor& tensor,
                 const at::Tensor& input, const Scope& scope, int64_t axis,
                 const std::string& input_name = "input") {
  const std::string size_at_axis = input_name + ".size(" + std::to_string(axis) + ")";
  std::vector<c10::SymInt> sizes = scale_sizes(input.sym_sizes().vec(), scope);
  std::string words;
  switch (scope.granularity) {
    case Granularity::kPerTensor:
      TORCH_CHECK_VALUE(tensor.dim() == 0 || has_sizes(tensor, {1}), op, ": expected ", name,
                        " to have 1 element (shape [] or [1], one for the tensor), but got shape ",
                        tensor.sym_sizes());
      return;
    case Granularity::kPerChannel:
      TORCH_CHECK_VALUE(tensor.dim() == 1, op, ": expected ", name, " to have shape [", sizes[0],
                        "] (", size_at_axis, "), but got shape ", tensor.sym_sizes());
      TORCH_CHECK_VALUE(has_sizes(tensor, sizes), op, ": expected ", name, " to have ", sizes[0],
                        " elements (", size_at_axis, "), but got ", tensor.sym_size(0));
      return;
    case Granularity::kPerToken:
      if (tensor.dim() == input.dim() - 1) sizes.pop_back();
      words = "the " + input_name + "'s without its last dimension, or with 1 there";
      break;
    case Granularity::kPerGroup:
      words = "the " + input_name + "'s with ceil(" + size_at_axis + " / group_size) at axis " +
              std::to_string(axis);
      break;
  }
  TORCH_CHECK_VALUE(has_sizes(tensor, sizes), op, ": expected ", name, " to have shape ",
                    c10::SymIntArrayRef(sizes), " (", words, "), but got ", tensor.sym_sizes());
}

void check_zero_point_tensor(const OpName& op, const at::Tensor& zero_point,
                             const at::Tensor& input, const QuantArgs& q, int64_t axis,
                             bool may_be_learned) {
  check_strided(op, "zero_point", zero_point);
  const at::ScalarType dtype = zero_point.scalar_type();
  const bool is_integer = c10::isIntegralType(dtype, /*includeBool=*/false);
  TORCH_CHECK_TYPE(is_integer || (may_be_learned && is_supported_floating(dtype)), op,
                   ": expected zero_point to have an integer dtype",
                   may_be_learned ? " (or a floating one, where it is learned)" : "", ", but got ",
                   dtype_name(dtype));
  check_same_device(op, "zero_point", zero_point, input);
  check_shape(op, "zero_point", zero_point, input, q.scope, axis);
}

// Checks scale and zero point, tensors or numbers. compute: the dtype that the scale must have; if
// absent, float32 or float64.
void check_qparams(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                   std::optional<at::ScalarType> compute, bool may_be_learned,
                   const char* input_name = "input") {
  const int64_t axis = check_scope(op, input, q.scope, input_name);
  if (q.scale) {
    if (compute) {
      check_dtype(op, "scale", *q.scale, *compute, "the compute type of the input");
    } else {
      check_strided(op, "scale", *q.scale);
      const at::ScalarType dtype = q.scale->scalar_type();
      TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                       ": expected scale to be torch.float32 or torch.float64, but got ",
                       dtype_name(dtype));
    }
    check_same_device(op, "scale", *q.scale, input, input_name);
    check_shape(op, "scale", *q.scale, input, q.scope, axis, input_name);
  } else {
    TORCH_CHECK_VALUE(q.scope.granularity == Granularity::kPerTensor, op,
                      ": expected scale to be a tensor, but got none");
    TORCH_CHECK_VALUE(!q.zero_point, op,
                      ": expected zero_point to be a number, as scale is, but got a tensor");
  }
  if (q.zero_point) {
    check_zero_point_tensor(op, *q.zero_point, input, q, axis, may_be_learned);
  }
}

void check_numbers(const OpName& op, const QuantArgs& q, at::ScalarType compute) {
  if (q.scale) return;
  check_scale_number(op, "scale", q.scale_number, compute);
  check_zero_point_number(op, q.zero_point_number, q.quant_min, q.quant_max);
}

}  // namespace

void check_zero_point_number(const OpName& op, int64_t zero_point, int64_t quant_min,
                             int64_t quant_max) {
  TORCH_CHECK_VALUE(zero_point >= quant_min && zero_point <= quant_max, op,
                    ": expected zero_point to lie in [", quant_min, ", ", quant_max,
                    "] (quant_min and quant_max), but got ", zero_point);
}

void check_quantize(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                    at::ScalarType dtype) {
  check_floating(op, "input", input);
  TORCH_CHECK_TYPE(dtype == at::kChar || dtype == at::kByte || is_supported_floating(dtype), op,
                   ": expected dtype to be int8, uint8, float32, float64, float16 or bfloat16, "
                   "but got ",
                   dtype_name(dtype));
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  check_range(op, q.quant_min, q.quant_max, dtype);
  check_range(op, q.quant_min, q.quant_max, compute);  // which the kernel computes in
  check_qparams(op, input, q, compute, false);
  check_numbers(op, q, compute);
}

void check_fake_quantize(const OpName& op, const at::Tensor& input, const QuantArgs& q) {
  check_floating(op, "input", input);
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  check_range(op, q.quant_min, q.quant_max, compute);
  check_qparams(op, input, q, compute, true);
  check_numbers(op, q, compute);
}

void check_dequantize(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                      at::ScalarType dtype, const char* input_name) {
  check_strided(op, input_name, input);
  const at::ScalarType from = input.scalar_type();
  TORCH_CHECK_TYPE(from == at::kChar || from == at::kByte || is_supported_floating(from), op,
                   ": expected ", input_name,
                   " to be int8, uint8, float32, float64, float16 or bfloat16, "
                   "but got ",
                   dtype_name(from));
  check_output_dtype(op, dtype);
  check_qparams(op, input, q, std::nullopt, false, input_name);
  if (!q.scale) {
    check_scale_number(op, "scale", q.scale_number,
                       dtype == at::kDouble || from == at::kDouble ? at::kDouble : at::kFloat);
  }
  TORCH_CHECK_VALUE(q.zero_point_number >= std::numeric_limits<int32_t>::min() &&
                        q.zero_point_number <= std::numeric_limits<int32_t>::max(),
                    op, ": expected zero_point to fit in 32 bits, but got ", q.zero_point_number);
}

void check_gradient(const OpName& op, const at::Tensor& input, const QuantArgs& q,
                    const at::Tensor& grad, bool through_quantize) {
  check_floating(op, "input", input);
  check_floating(op, "grad", grad);
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  if (!through_quantize) {
    check_dtype(op, "grad", grad, input.scalar_type(), "the input's dtype");
  }
  check_same_device(op, "grad", grad, input);
  check_same_sizes(op, "grad", grad, input, "input");
  check_range(op, q.quant_min, q.quant_max, compute);
  check_qparams(op, input, q, compute, !through_quantize);
  check_numbers(op, q, compute);
}

void check_masked_gradient(const OpName& op, const at::Tensor& grad, const QuantArgs& q,
                           const at::Tensor& mask, at::ScalarType dtype, bool through_quantize) {
  check_floating(op, "grad", grad);
  check_output_dtype(op, dtype);
  if (!through_quantize) check_dtype(op, "grad", grad, dtype, "the input's dtype");
  const c10::SymInt bytes = (grad.sym_numel() + 7) / 8;
  const char* bits = "a bit for each element";
  check_expected(op, {"mask", mask, at::kByte, "8 bits in a byte", bytes, bits}, grad);
  if (through_quantize) check_qparams(op, grad, q, compute_dtype(dtype), false);
}

}  // namespace baraquant::affine
