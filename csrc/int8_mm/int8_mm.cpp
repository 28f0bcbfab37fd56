// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family: schemas. Numerics in int8_mm.h, checks in
// int8_mm_checks.cpp.
//   int8_linear         y[m, n] = (sum over k of (q[m, k] - z[m]) * w[n, k]) * sw[n] * s[m] + b[n]
//   smoothquant_linear  the same with one scale s and zero point z for all of the input
//   quantized_linear    the same with q, s and z from
//                       dynamic_range_quantize_per_token(x, quant_min, quant_max)
//   qat_linear          the same with w, sw from dynamic_range_quantize_per_channel(weight, 0,
//                       weight_quant_min, weight_quant_max) too, differentiable
// Their arguments:
//   input         [..., K], any strides: int8 or uint8; floating for the last two
//   weight        int8 [N, K], contiguous; floating like the input for qat_linear
//   input_scale   of the compute type C of the output: one for all ([] or [1]) or one per token
//                 (input.shape[:-1], or with a 1 behind)
//   act_scale     C [] or [1], or a number
//   weight_scale  C [N]
//   bias          [N], C or the output's dtype
//   ..zero_point  any integer dtype, one for all or one per token; or a number; absent: 0
//   weight_sum    int32 [N], weight.sum(1), which a zero point needs; absent: summed up each time
//   symmetric     whether the input's zero point is 0; else its range, with 0, fills that of the
//                 integers
//   (weight_)quant_min, (weight_)quant_max
//                 the range of the input's and the weight's integers, within int8: any, but where
//                 the scheme is symmetric (the weight's is) with 0 in the middle
//   dtype         of the output, floating; the last two return the input's
// The output is [..., N], contiguous.
#include "int8_mm/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace baraquant::int8_mm {
namespace {

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                      const Schemes& s) {
  static const auto op = find<decltype(Flat<&qat_linear>::kernel)>("baraquant::qat_linear");
  return op.call(input, weight, bias, s.input.symmetric, s.weight.quant_min, s.weight.quant_max,
                 s.input.quant_min, s.input.quant_max);
}

KeptByQatLinear qat_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, const Schemes& s, bool with_mask) {
  static const auto op =
      find<decltype(Flat<&qat_linear_kept>::kernel)>("baraquant::_qat_linear_kept");
  return op.call(input, weight, bias, s.input.symmetric, s.weight.quant_min, s.weight.quant_max,
                 s.input.quant_min, s.input.quant_max, with_mask);
}

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const auto def = [&](const std::string& schema) {
    m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
  };
  def("int8_linear(Tensor input, Tensor weight, Tensor input_scale, Tensor weight_scale, "
      "Tensor? bias=None, *, Tensor? input_zero_point=None, Tensor? weight_sum=None, "
      "ScalarType dtype=float) -> Tensor");
  def("smoothquant_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor act_scale, "
      "Tensor? bias=None, *, Tensor? act_zero_point=None, Tensor? weight_sum=None, "
      "ScalarType dtype=float) -> Tensor");
  def("smoothquant_linear.number(Tensor input, Tensor weight, Tensor weight_scale, "
      "float act_scale, Tensor? bias=None, *, int? act_zero_point=None, "
      "Tensor? weight_sum=None, ScalarType dtype=float) -> Tensor");
  def("quantized_linear(Tensor input, Tensor weight, Tensor weight_scale, Tensor? bias=None, *, "
      "bool symmetric=True, Tensor? weight_sum=None, int quant_min=-128, int quant_max=127) "
      "-> Tensor");
  def("qat_linear(Tensor input, Tensor weight, Tensor? bias=None, *, bool symmetric=True, "
      "int weight_quant_min=-128, int weight_quant_max=127, int quant_min=-128, "
      "int quant_max=127) -> Tensor");
  // qat_linear with what its backward needs. The mask holds one bit per element of the input.
  def("_qat_linear_kept(Tensor input, Tensor weight, Tensor? bias, bool symmetric, "
      "int weight_quant_min, int weight_quant_max, int quant_min, int quant_max, bool with_mask) "
      "-> (Tensor output, Tensor qinput, Tensor input_scale, "
      "Tensor input_zero_point, Tensor mask, Tensor qweight, Tensor weight_scale)");
}

// Integers carry no gradient: autograd has nothing to record.
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  for (const char* op :
       {"int8_linear", "smoothquant_linear", "smoothquant_linear.number", "quantized_linear"}) {
    m.impl(op, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace baraquant::int8_mm
