// SPDX-License-Identifier: BSD-3-Clause
// The ops of the affine family: schemas, and the public ops. A public op names a granularity and
// calls the core op of its verb, which checks its arguments. The arithmetic is in math.h:
//   quantize      q = clamp(rint(x / s) + z, quant_min, quant_max)
//   dequantize    y = (q - z) * s
//   fake_quantize y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s

#include "affine/checks.h"
#include "affine/core_ops.h"
#include "frame/checks.h"
#include "frame/recorded.h"
#include "granularity/public_op.h"

namespace baraquant::affine {
namespace {

const OptionalTensor kNone;

void check_tensors(const OpName& op, const at::Tensor& scale, const OptionalTensor& zero_point) {
  check_dispatchable(op, "scale", scale);
  if (zero_point) check_dispatchable(op, "zero_point", *zero_point);
}

// --- the public ops of all granularities ---------------------------------------------------------

at::Tensor public_quantize(const at::Tensor& input, const at::Tensor& scale,
                           const OptionalTensor& zero_point, const Scope& scope, int64_t quant_min,
                           int64_t quant_max, at::ScalarType dtype, std::optional<bool> save_mask) {
  const OpName op{"quantize", scope.granularity};
  check_dispatchable(op, "input", input);
  check_tensors(op, scale, zero_point);
  return quantize(input,
                  {.scale = scale,
                   .zero_point = zero_point,
                   .scope = scope,
                   .quant_min = quant_min,
                   .quant_max = quant_max},
                  dtype, save_mask);
}

at::Tensor public_fake_quantize(const at::Tensor& input, const at::Tensor& scale,
                                const OptionalTensor& zero_point, const Scope& scope,
                                int64_t quant_min, int64_t quant_max,
                                std::optional<bool> save_mask) {
  const OpName op{"fake_quantize", scope.granularity};
  check_dispatchable(op, "input", input);
  check_tensors(op, scale, zero_point);
  return fake_quantize(input,
                       {.scale = scale,
                        .zero_point = zero_point,
                        .scope = scope,
                        .quant_min = quant_min,
                        .quant_max = quant_max},
                       save_mask, /*enabled=*/kNone);
}

at::Tensor public_dequantize(const at::Tensor& input, const at::Tensor& scale,
                             const OptionalTensor& zero_point, const Scope& scope,
                             std::optional<at::ScalarType> dtype) {
  const OpName op{"dequantize", scope.granularity};
  check_dispatchable(op, "input", input);
  check_tensors(op, scale, zero_point);
  return dequantize(input, {.scale = scale, .zero_point = zero_point, .scope = scope},
                    dtype.value_or(scale.scalar_type()));
}

template <bool through_quantize>
at::Tensor public_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
                           const OptionalTensor& zero_point, const Scope& scope, int64_t quant_min,
                           int64_t quant_max) {
  const OpName op{through_quantize ? "quantize" : "fake_quantize", scope.granularity, "_backward"};
  check_dispatchable(op, "grad", grad);
  check_dispatchable(op, "input", input);
  check_tensors(op, scale, zero_point);
  return input_gradient(input,
                        {.scale = scale,
                         .zero_point = zero_point,
                         .scope = scope,
                         .quant_min = quant_min,
                         .quant_max = quant_max},
                        grad, through_quantize);
}

TensorTriple public_backward_qparams(const at::Tensor& grad, const at::Tensor& input,
                                     const at::Tensor& scale, const OptionalTensor& zero_point,
                                     const Scope& scope, int64_t quant_min, int64_t quant_max) {
  const OpName op{"fake_quantize", scope.granularity, "_backward_qparams"};
  check_dispatchable(op, "grad", grad);
  check_dispatchable(op, "input", input);
  check_tensors(op, scale, zero_point);
  return qparams_gradient(input,
                          {.scale = scale,
                           .zero_point = zero_point,
                           .scope = scope,
                           .quant_min = quant_min,
                           .quant_max = quant_max},
                          grad, /*zero_point_gradient=*/true);
}

// dq = dy * s: dequantize with a zero point of 0.
at::Tensor public_dequantize_backward(const at::Tensor& grad, const at::Tensor& scale,
                                      const Scope& scope, std::optional<at::ScalarType> dtype) {
  const OpName op{"dequantize", scope.granularity, "_backward"};
  check_dispatchable(op, "grad", grad);
  check_floating(op, "grad", grad);
  check_tensors(op, scale, kNone);
  const OptionalTensor given_scale(scale);
  const QuantArgs q{.scale = given_scale, .zero_point = kNone, .scope = scope};
  const at::ScalarType output = dtype.value_or(grad.scalar_type());
  check_dequantize(op, grad, q, output, "grad");
  TORCH_CHECK_NOT_IMPLEMENTED(!requires_grad(scale), op,
                              ": a gradient in scale is not implemented; detach it "
                              "(scale.detach())");
  return dequantize(grad, q, output);
}

// --- per tensor, with numbers --------------------------------------------------------------------
// The scale is a number and the zero point a number or None, or the scale is a tensor and the zero
// point a number.

template <typename Scale>
constexpr bool is_number = std::is_same_v<Scale, double>;

template <typename Scale, typename ZeroPoint>
QuantArgs with_numbers(const OpName& op, const at::Tensor& input,
                       const OptionalTensor& scale_tensor, Scale scale, ZeroPoint zero_point,
                       int64_t quant_min, int64_t quant_max) {
  check_dispatchable(op, "input", input);
  QuantArgs q{
      .scale = scale_tensor, .zero_point = kNone, .quant_min = quant_min, .quant_max = quant_max};
  if constexpr (is_number<Scale>) {
    q.scale_number = scale;
    q.zero_point_number = zero_point.value_or(0);
  } else {
    check_dispatchable(op, "scale", scale);
    q.zero_point_number = zero_point;
  }
  return q;
}

template <typename Scale>
OptionalTensor tensor_of(Scale scale) {
  if constexpr (is_number<Scale>) {
    return std::nullopt;
  } else {
    return scale;
  }
}

// A core op checks the zero point number of a scale number alone.
template <typename Scale>
void check_zero_point_of(const OpName& op, const QuantArgs& q) {
  if constexpr (!is_number<Scale>) {
    check_zero_point_number(op, q.zero_point_number, q.quant_min, q.quant_max);
  }
}

template <typename Scale, typename ZeroPoint>
at::Tensor quantize_numbers(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                            int64_t quant_min, int64_t quant_max, at::ScalarType dtype,
                            std::optional<bool> save_mask) {
  const OpName op{"quantize", Granularity::kPerTensor};
  const OptionalTensor tensor = tensor_of<Scale>(scale);
  const QuantArgs q =
      with_numbers<Scale>(op, input, tensor, scale, zero_point, quant_min, quant_max);
  check_zero_point_of<Scale>(op, q);
  return quantize(input, q, dtype, save_mask);
}

template <typename Scale, typename ZeroPoint>
at::Tensor fake_quantize_numbers(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                                 int64_t quant_min, int64_t quant_max,
                                 std::optional<bool> save_mask) {
  const OpName op{"fake_quantize", Granularity::kPerTensor};
  const OptionalTensor tensor = tensor_of<Scale>(scale);
  const QuantArgs q =
      with_numbers<Scale>(op, input, tensor, scale, zero_point, quant_min, quant_max);
  check_zero_point_of<Scale>(op, q);
  return fake_quantize(input, q, save_mask, /*enabled=*/kNone);
}

template <typename Scale, typename ZeroPoint>
at::Tensor dequantize_numbers(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                              std::optional<at::ScalarType> dtype) {
  const OpName op{"dequantize", Granularity::kPerTensor};
  const OptionalTensor tensor = tensor_of<Scale>(scale);
  const QuantArgs q = with_numbers<Scale>(op, input, tensor, scale, zero_point, -128, 127);
  // A number has no dtype: the output is float32, or float64 for a float64 input.
  const at::ScalarType compute = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return dequantize(input, q, dtype.value_or(tensor ? tensor->scalar_type() : compute));
}

template <typename Scale, typename ZeroPoint>
void implement_numbers(torch::Library& m, const std::string& overload) {
  m.impl(("quantize_per_tensor." + overload).c_str(), &quantize_numbers<Scale, ZeroPoint>);
  m.impl(("dequantize_per_tensor." + overload).c_str(), &dequantize_numbers<Scale, ZeroPoint>);
  m.impl(("fake_quantize_per_tensor." + overload).c_str(),
         &fake_quantize_numbers<Scale, ZeroPoint>);
}

void define_numbers(torch::Library& m, const std::string& overload, const std::string& qparams) {
  const std::string head = "_per_tensor." + overload + "(Tensor input, " + qparams;
  define(m, "quantize" + head +
                ", int quant_min=-128, int quant_max=127, *, ScalarType dtype=int8, "
                "bool? save_mask=None) -> Tensor");
  define(m, "dequantize" + head + ", *, ScalarType? dtype=None) -> Tensor");
  define(m, "fake_quantize" + head +
                ", int quant_min=-128, int quant_max=127, *, bool? save_mask=None) -> Tensor");
}

// A mask holds one bit for each element, in the given memory order.
void define_core_ops(torch::Library& m) {
  const std::string args = QuantArgs::schema();
  define(m, "_quantize(Tensor input, " + args + ", ScalarType dtype, bool? save_mask) -> Tensor");
  define(m, "_fake_quantize(Tensor input, " + args +
                ", bool? save_mask, Tensor? enabled=None) -> Tensor");
  define(m, "_dequantize(Tensor input, " + args + ", ScalarType dtype) -> Tensor");
  define(m, "_quantize_with_mask(Tensor input, " + args +
                ", ScalarType dtype, int[] order) -> (Tensor output, Tensor mask)");
  define(m, "_fake_quantize_with_mask(Tensor input, " + args +
                ", int[] order, Tensor? enabled=None) -> (Tensor output, Tensor mask)");
  define(m, "_input_gradient(Tensor input, " + args +
                ", Tensor grad, bool through_quantize) -> Tensor");
  define(m, "_masked_gradient(Tensor grad, " + args +
                ", Tensor mask, int[] order, ScalarType dtype, bool through_quantize) -> Tensor");
  define(m, "_qparams_gradient(Tensor input, " + args +
                ", Tensor grad, bool zero_point_gradient) -> "
                "(Tensor grad_input, Tensor grad_scale, Tensor grad_zero_point)");
  // The numbers of a parameter, rounded to bfloat16 or else to float16, in the parameter's dtype; the
  // gradient goes straight through. Two casts in Python would not do: Inductor removes them. Which
  // one is no dtype, since a package of AOTInductor can call no op with one.
  define(m, "_round_master(Tensor input, bool to_bfloat16) -> Tensor");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define_public_ops(m,
                    "quantize_per_*(Tensor input, Tensor scale, Tensor? zero_point, ..., "
                    "int quant_min=-128, int quant_max=127, *, ScalarType dtype=int8, "
                    "bool? save_mask=None) -> Tensor");
  define_public_ops(m,
                    "dequantize_per_*(Tensor input, Tensor scale, Tensor? zero_point, ..., *, "
                    "ScalarType? dtype=None) -> Tensor");
  define_public_ops(m,
                    "fake_quantize_per_*(Tensor input, Tensor scale, Tensor? zero_point, ..., "
                    "int quant_min=-128, int quant_max=127, *, bool? save_mask=None) -> Tensor");
  define_public_ops(m,
                    "quantize_per_*_backward(Tensor grad, Tensor input, Tensor scale, "
                    "Tensor? zero_point, ..., int quant_min=-128, int quant_max=127) -> Tensor");
  define_public_ops(m,
                    "fake_quantize_per_*_backward(Tensor grad, Tensor input, Tensor scale, "
                    "Tensor? zero_point, ..., int quant_min=-128, int quant_max=127) -> Tensor");
  define_public_ops(m,
                    "fake_quantize_per_*_backward_qparams(Tensor grad, Tensor input, Tensor scale, "
                    "Tensor? zero_point, ..., int quant_min=-128, int quant_max=127) -> "
                    "(Tensor grad_input, Tensor grad_scale, Tensor grad_zero_point)");
  define_public_ops(m,
                    "dequantize_per_*_backward(Tensor grad, Tensor scale, ..., *, "
                    "ScalarType? dtype=None) -> Tensor");
  // In this order: torch.ops takes the first overload that fits, and converts a scale tensor of one
  // element to a float.
  define_numbers(m, "scale_tensor", "Tensor scale, int zero_point");
  define_numbers(m, "number", "float scale, int? zero_point");
  define_core_ops(m);
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  implement_public_ops<&public_quantize>(m, "quantize_per_*");
  implement_public_ops<&public_dequantize>(m, "dequantize_per_*");
  implement_public_ops<&public_fake_quantize>(m, "fake_quantize_per_*");
  implement_public_ops<&public_backward<true>>(m, "quantize_per_*_backward");
  implement_public_ops<&public_backward<false>>(m, "fake_quantize_per_*_backward");
  implement_public_ops<&public_backward_qparams>(m, "fake_quantize_per_*_backward_qparams");
  implement_public_ops<&public_dequantize_backward>(m, "dequantize_per_*_backward");
  implement_numbers<const at::Tensor&, int64_t>(m, "scale_tensor");
  implement_numbers<double, std::optional<int64_t>>(m, "number");
}

}  // namespace baraquant::affine
