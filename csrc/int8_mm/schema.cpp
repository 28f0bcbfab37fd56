// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family: schemas. What each computes, and what its arguments are, stands
// in ops.txt. The arithmetic is in math.h, checks are in checks.cpp. Ops with a floating input are
// differentiable. The output is [..., N], contiguous.
#include "granularity/public_op.h"
#include "int8_mm/core_ops.h"
#include "int8_mm/integer_backward.h"

namespace baraquant::int8_mm {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m,
         "int8_linear(Tensor input, Tensor weight, Tensor input_scale, Tensor weight_scale, "
         "Tensor? bias=None, *, Tensor? input_zero_point=None, Tensor? weight_sum=None, "
         "ScalarType dtype=float) -> Tensor");
  define(m,
         "int8_product(Tensor input, Tensor weight, *, Tensor? input_zero_point=None, "
         "Tensor? weight_sum=None) -> Tensor");
  define(m,
         "rescale_product(Tensor input, Tensor input_scale, Tensor weight_scale, "
         "Tensor? bias=None, *, ScalarType dtype=float) -> Tensor");
  define(m,
         "int8_grouped_linear(Tensor input, Tensor weight, Tensor offsets, Tensor input_scale, "
         "Tensor weight_scale, Tensor? bias=None, *, Tensor? input_zero_point=None, "
         "Tensor? weight_sum=None, ScalarType dtype=float) -> Tensor");
  define(m,
         "smoothquant_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor act_scale, "
         "Tensor? bias=None, *, Tensor? act_zero_point=None, Tensor? weight_sum=None, "
         "ScalarType dtype=float) -> Tensor");
  define(m,
         "smoothquant_linear.number(Tensor input, Tensor weight, Tensor weight_scale, "
         "float act_scale, Tensor? bias=None, *, int? act_zero_point=None, "
         "Tensor? weight_sum=None, ScalarType dtype=float) -> Tensor");
  define(m,
         "quantized_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
         "bool symmetric=True, Tensor? weight_sum=None, int quant_min=-128, int quant_max=127, "
         "ScalarType? dtype=None) -> Tensor");
  define(m,
         "quantized_grouped_linear(Tensor input, Tensor weight, Tensor offsets, "
         "Tensor weight_scale, Tensor? bias=None, *, bool symmetric=True, Tensor? weight_sum=None, "
         "int quant_min=-128, int quant_max=127, ScalarType? dtype=None) -> Tensor");
  define(m,
         "static_quantized_linear(Tensor input, Tensor weight, Tensor weight_scale, "
         "Tensor act_scale, Tensor? bias=None, *, Tensor? act_zero_point=None, "
         "Tensor? smooth_scale=None, Tensor? weight_sum=None, int quant_min=-128, "
         "int quant_max=127, ScalarType? dtype=None) -> Tensor");
  define(m,
         "int4_linear(Tensor input, Tensor packed, Tensor input_scale, Tensor weight_scale, "
         "Tensor group_factor, int group_size, Tensor? bias=None, *, "
         "Tensor? group_zero_point=None, Tensor? input_zero_point=None, Tensor? weight_sum=None, "
         "ScalarType dtype=float) -> Tensor");
  define(m,
         "quantized_int4_linear(Tensor input, Tensor packed, Tensor weight_scale, "
         "Tensor group_factor, int group_size, Tensor? bias=None, *, "
         "Tensor? group_zero_point=None, bool symmetric=True, Tensor? weight_sum=None, "
         "int quant_min=-128, int quant_max=127, ScalarType? dtype=None) -> Tensor");
  define(m,
         "static_quantized_int4_linear(Tensor input, Tensor packed, Tensor weight_scale, "
         "Tensor group_factor, int group_size, Tensor act_scale, Tensor? bias=None, *, "
         "Tensor? group_zero_point=None, Tensor? act_zero_point=None, Tensor? smooth_scale=None, "
         "Tensor? weight_sum=None, int quant_min=-128, int quant_max=127, "
         "ScalarType? dtype=None) -> Tensor");
  const std::string backward = BackwardArgs::kSchema;
  define(m,
         "qat_linear(Tensor input, Tensor weight, Tensor? bias=None, *, bool symmetric=True, "
         "int weight_quant_min=-128, int weight_quant_max=127, int quant_min=-128, "
         "int quant_max=127, " +
             backward + ", " + GivenWeight::kSchema + ") -> Tensor");
  define(m,
         "qat_grouped_linear(Tensor input, Tensor weight, Tensor offsets, Tensor? bias=None, *, "
         "bool symmetric=True, int weight_quant_min=-128, int weight_quant_max=127, "
         "int quant_min=-128, int quant_max=127, " +
             backward + ") -> Tensor");
  // int8_linear and int4_linear of an input with some weights: frame/lists.h.
  define(m,
         "_int8_linears(Tensor input, Tensor[] weights, Tensor input_scale, "
         "Tensor[] weight_scales, Tensor[]? biases, Tensor? input_zero_point, "
         "Tensor[]? weight_sums, ScalarType dtype) -> Tensor[]");
  define(m,
         "_int4_linears(Tensor input, Tensor[] packed, Tensor input_scale, Tensor[] weight_scales, "
         "Tensor[] group_factors, int group_size, Tensor[]? biases, Tensor[]? group_zero_points, "
         "Tensor? input_zero_point, Tensor[]? weight_sums, ScalarType dtype) -> Tensor[]");
  // These also return what a backward needs. A mask holds one bit for each element of the input.
  define(m,
         "_quantized_linear_with_mask(Tensor input, Tensor weight, Tensor weight_scale, "
         "Tensor? bias, bool symmetric, Tensor? weight_sum, int quant_min, int quant_max, "
         "ScalarType? dtype) -> (Tensor output, Tensor mask)");
  define(m,
         "_quantized_grouped_linear_with_mask(Tensor input, Tensor weight, Tensor offsets, "
         "Tensor weight_scale, Tensor? bias, bool symmetric, Tensor? weight_sum, int quant_min, "
         "int quant_max, ScalarType? dtype) -> (Tensor output, Tensor mask)");
  define(m,
         "_static_quantized_linear_with_mask(Tensor input, Tensor weight, Tensor weight_scale, "
         "Tensor act_scale, Tensor? bias, Tensor? act_zero_point, Tensor? smooth_scale, "
         "Tensor? weight_sum, int quant_min, int quant_max, ScalarType? dtype) "
         "-> (Tensor output, Tensor mask)");
  // The gradients of a product from integers; what is not given is not computed.
  define(m, "_integer_backward(Tensor grad, " + std::string(IntegerBackwardArgs::kSchema) +
                ") -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)");
  const std::string how = std::string(Schemes::kSchema) + ", bool with_mask";
  const std::string kept =
      ") -> (Tensor output, Tensor qinput, Tensor input_scale, Tensor input_zero_point, "
      "Tensor mask, Tensor saved_qweight, Tensor saved_weight_scale)";
  define(m, "_qat_linear_kept(Tensor input, Tensor weight, Tensor? bias, " + how + ", " +
                GivenWeight::kSchema + kept);
  define(m, "_qat_grouped_linear_kept(Tensor input, Tensor weight, Tensor offsets, Tensor? bias, " +
                how + kept);
  // Floating products of groups of rows: grouped_products.h.
  define(m, "_grouped_matmul(Tensor rows, Tensor matrices, Tensor offsets) -> Tensor");
  define(m, "_grouped_outer(Tensor left, Tensor right, Tensor offsets) -> Tensor");
  define(m, "_grouped_sum(Tensor rows, Tensor offsets, ScalarType dtype) -> Tensor");
}

}  // namespace baraquant::int8_mm
