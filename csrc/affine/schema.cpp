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

// --- the public ops ------------------------------------------------------------------------------

// What public ops take of a scale and a zero point: tensors of any granularity, or per tensor numbers
// (both, or the zero point alone).
struct Tensors {
  const at::Tensor& scale;
  const OptionalTensor& zero_point;
  Scope scope;

  static constexpr int kFields = 3;
};

template <typename Scale, typename ZeroPoint>
struct WithNumbers {
  Scale scale;
  ZeroPoint zero_point;

  static constexpr int kFields = 2;
  static inline const Scope scope = {};
};
using ZeroPointNumber = WithNumbers<const at::Tensor&, int64_t>;
using Numbers = WithNumbers<double, std::optional<int64_t>>;

template <typename Qparams>
struct Ranged {
  Qparams qparams;
  int64_t quant_min, quant_max;

  static constexpr int kFields = 3;
};

OptionalTensor tensor_of(const at::Tensor& scale) { return scale; }
OptionalTensor tensor_of(double) { return std::nullopt; }
const OptionalTensor& zero_point_of(const Tensors& own) { return own.zero_point; }
template <typename Qparams>
const OptionalTensor& zero_point_of(const Qparams&) {
  return kNone;
}

// What a core op takes, from the arguments of a public op, whose tensors are checked.
struct Given {
  const OptionalTensor scale;
  QuantArgs q;

  template <typename Qparams>
  Given(const OpName& op, const at::Tensor& input, const Qparams& own)
      : scale(tensor_of(own.scale)),
        q{.scale = scale, .zero_point = zero_point_of(own), .scope = own.scope} {
    check_dispatchable(op, "input", input);
    if (q.scale) check_dispatchable(op, "scale", *q.scale);
    if (q.zero_point) check_dispatchable(op, "zero_point", *q.zero_point);
    if constexpr (std::is_same_v<Qparams, Numbers>) {
      q.scale_number = own.scale;
      q.zero_point_number = own.zero_point.value_or(0);
    } else if constexpr (std::is_same_v<Qparams, ZeroPointNumber>) {
      q.zero_point_number = own.zero_point;
    }
  }
  template <typename Qparams>
  Given(const OpName& op, const at::Tensor& input, const Ranged<Qparams>& own)
      : Given(op, input, own.qparams) {
    q.quant_min = own.quant_min;
    q.quant_max = own.quant_max;
    // A core op checks the zero point number of a scale number alone.
    if constexpr (std::is_same_v<Qparams, ZeroPointNumber>) {
      check_zero_point_number(op, q.zero_point_number, q.quant_min, q.quant_max);
    }
  }
  Given(const Given&) = delete;  // q refers to the scale
};

template <typename Qparams>
at::Tensor public_quantize(const at::Tensor& input, const Ranged<Qparams>& own,
                           at::ScalarType dtype, std::optional<bool> save_mask) {
  const Given given({"quantize", own.qparams.scope.granularity}, input, own);
  return quantize(input, given.q, dtype, save_mask);
}

template <typename Qparams>
at::Tensor public_fake_quantize(const at::Tensor& input, const Ranged<Qparams>& own,
                                std::optional<bool> save_mask) {
  const Given given({"fake_quantize", own.qparams.scope.granularity}, input, own);
  return fake_quantize(input, given.q, save_mask, /*enabled=*/kNone);
}

// A number has no dtype: the output is float32, or float64 for a float64 input.
template <typename Qparams>
at::Tensor public_dequantize(const at::Tensor& input, const Qparams& own,
                             std::optional<at::ScalarType> dtype) {
  const Given given({"dequantize", own.scope.granularity}, input, own);
  const at::ScalarType compute =
      given.q.scale ? given.q.scale->scalar_type() : compute_dtype(input.scalar_type());
  return dequantize(input, given.q, dtype.value_or(compute));
}

template <bool through_quantize>
at::Tensor public_backward(const at::Tensor& grad, const at::Tensor& input,
                           const Ranged<Tensors>& own) {
  const OpName op{through_quantize ? "quantize" : "fake_quantize", own.qparams.scope.granularity,
                  "_backward"};
  check_dispatchable(op, "grad", grad);
  const Given given(op, input, own);
  return input_gradient(input, given.q, grad, through_quantize);
}

TensorTriple public_backward_qparams(const at::Tensor& grad, const at::Tensor& input,
                                     const Ranged<Tensors>& own) {
  const OpName op{"fake_quantize", own.qparams.scope.granularity, "_backward_qparams"};
  check_dispatchable(op, "grad", grad);
  const Given given(op, input, own);
  return qparams_gradient(input, given.q, grad, /*zero_point_gradient=*/true);
}

// dq = dy * s: dequantize with a zero point of 0.
at::Tensor public_dequantize_backward(const at::Tensor& grad, const at::Tensor& scale,
                                      const Scope& scope, std::optional<at::ScalarType> dtype) {
  const OpName op{"dequantize", scope.granularity, "_backward"};
  check_dispatchable(op, "grad", grad);
  check_floating(op, "grad", grad);
  const Given given(op, grad, Tensors{scale, kNone, scope});
  const at::ScalarType output = dtype.value_or(grad.scalar_type());
  check_dequantize(op, grad, given.q, output, "grad");
  TORCH_CHECK_NOT_IMPLEMENTED(!requires_grad(scale), op,
                              ": a gradient in scale is not implemented; detach it "
                              "(scale.detach())");
  return dequantize(grad, given.q, output);
}

template <typename Qparams>
void implement_numbers(torch::Library& m, const std::string& overload) {
  const std::string name = "quantize_per_tensor." + overload;
  m.impl(name.c_str(), kernel_of<&public_quantize<Qparams>>);
  m.impl(("de" + name).c_str(), kernel_of<&public_dequantize<Qparams>>);
  m.impl(("fake_" + name).c_str(), kernel_of<&public_fake_quantize<Qparams>>);
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
  const std::string qparams = ", Tensor scale, Tensor? zero_point, ...";
  const std::string ranged = qparams + ", int quant_min=-128, int quant_max=127";
  define_public_ops(m, "quantize_per_*(Tensor input" + ranged +
                           ", *, ScalarType dtype=int8, bool? save_mask=None) -> Tensor");
  define_public_ops(
      m, "dequantize_per_*(Tensor input" + qparams + ", *, ScalarType? dtype=None) -> Tensor");
  define_public_ops(
      m, "fake_quantize_per_*(Tensor input" + ranged + ", *, bool? save_mask=None) -> Tensor");
  const std::string gradient = ", Tensor input" + ranged + ") -> ";
  define_public_ops(m, "quantize_per_*_backward(Tensor grad" + gradient + "Tensor");
  define_public_ops(m, "fake_quantize_per_*_backward(Tensor grad" + gradient + "Tensor");
  define_public_ops(m, "fake_quantize_per_*_backward_qparams(Tensor grad" + gradient +
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
  implement_public_ops<&public_quantize<Tensors>>(m, "quantize_per_*");
  implement_public_ops<&public_dequantize<Tensors>>(m, "dequantize_per_*");
  implement_public_ops<&public_fake_quantize<Tensors>>(m, "fake_quantize_per_*");
  implement_public_ops<&public_backward<true>>(m, "quantize_per_*_backward");
  implement_public_ops<&public_backward<false>>(m, "fake_quantize_per_*_backward");
  implement_public_ops<&public_backward_qparams>(m, "fake_quantize_per_*_backward_qparams");
  implement_public_ops<&public_dequantize_backward>(m, "dequantize_per_*_backward");
  implement_numbers<ZeroPointNumber>(m, "scale_tensor");
  implement_numbers<Numbers>(m, "number");
}

}  // namespace baraquant::affine
