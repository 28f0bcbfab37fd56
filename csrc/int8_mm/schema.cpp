// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family: schemas. The arithmetic is in math.h, checks are in
// checks.cpp.
//   int8_linear         y[m, n] = (sum over k of (q[m, k] - z[m]) * w[n, k]) * sw[n] * s[m] + b[n]
//   int8_product        its sums, as int32: sum over k of (q[m, k] - z[m]) * w[n, k]
//   rescale_product     its last step: sums[m, n] * sw[n] * s[m] + b[n]
//   smoothquant_linear  int8_linear with one scale s and one zero point z for the whole input
//   quantized_linear    int8_linear with q, s, z = dynamic_range_quantize_per_token(x, quant_min,
//                       quant_max)
//   static_quantized_linear
//                       smoothquant_linear with q = quantize_per_tensor(x, s, z, quant_min,
//                       quant_max) or, given smooth_scale, q = quantize_per_channel(x,
//                       smooth_scale, z, -1, quant_min, quant_max)
//   qat_linear          quantized_linear with w, sw = dynamic_range_quantize_per_channel(weight, 0,
//                       weight_quant_min, weight_quant_max)
//   int8_grouped_linear, quantized_grouped_linear, qat_grouped_linear
//                       the op without `grouped` in its name, for each group of rows of the input
//                       with a weight of its own; rows after the last group give 0
//   int4_linear, quantized_int4_linear, static_quantized_int4_linear
//                       int8_linear, quantized_linear and static_quantized_linear with the weight
//                       expand_int4(packed, group_factor, group_size, K, group_zero_point)
// Ops with a floating input are differentiable. What the arguments are stands in ops.txt. The output is
// [..., N], contiguous.
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
