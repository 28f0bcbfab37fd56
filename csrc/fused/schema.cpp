// SPDX-License-Identifier: BSD-3-Clause
// The ops of the fused family: schemas, and the public ops, which call core ops. All work on the
// vectors along the last dimension. The arithmetic is in math.h and elementary.h:
//   rms_norm    y = x / sqrt(mean(x^2) + eps) * weight
//   layer_norm  y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//   silu_mul    y = silu(gate) * up
//   gelu        y = x Phi(x), or its approximation by tanh
//   hadamard    y = H x / sqrt(block) for each `block` neighbours, H the Hadamard matrix
//   ..._quantize_per_token
//               dynamic_range_quantize_per_token(y, quant_min, quant_max, symmetric, dtype)
// With a residual, x is input + residual, rounded to the input's dtype, and is returned as well.
// The arguments:
//   input, residual, gate, up   any strides, floating (activations: not float64)
//   weight, bias                [input.size(-1)], of the input's dtype or of the compute type
//   block                       a power of two that divides input.size(-1)
// Outputs are contiguous.
#include "frame/checks.h"
#include "fused/checks.h"
#include "fused/core_ops.h"
#include "granularity/public_op.h"

namespace baraquant::fused {
namespace {

void check_tensors(const char* op, const at::Tensor& input, const OptionalTensor& weight,
                   const OptionalTensor& bias = std::nullopt,
                   const OptionalTensor& residual = std::nullopt) {
  check_dispatchable(op, "input", input);
  if (weight) check_dispatchable(op, "weight", *weight);
  if (bias) check_dispatchable(op, "bias", *bias);
  if (residual) check_dispatchable(op, "residual", *residual);
}

const OptionalTensor kNone;

NormArgs rms_args(const OptionalTensor& weight, double eps) {
  return {.weight = weight, .bias = kNone, .eps = eps, .centered = false};
}
NormArgs layer_args(const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  return {.weight = weight, .bias = bias, .eps = eps, .centered = true};
}

at::Tensor rms_norm(const at::Tensor& input, const OptionalTensor& weight, double eps) {
  check_tensors("baraquant::rms_norm", input, weight);
  return norm(input, rms_args(weight, eps));
}

TensorPair rms_norm_residual(const at::Tensor& input, const OptionalTensor& weight, double eps,
                             const at::Tensor& residual) {
  check_tensors("baraquant::rms_norm", input, weight, kNone, residual);
  return norm_residual(input, residual, rms_args(weight, eps));
}

TensorTriple rms_norm_quantize(const at::Tensor& input, const OptionalTensor& weight, double eps,
                               const QuantizeArgs& q) {
  check_tensors("baraquant::rms_norm_quantize_per_token", input, weight);
  return norm_quantize(input, rms_args(weight, eps), q);
}

TensorQuadruple rms_norm_quantize_residual(const at::Tensor& input, const OptionalTensor& weight,
                                           double eps, const at::Tensor& residual,
                                           const QuantizeArgs& q) {
  check_tensors("baraquant::rms_norm_quantize_per_token", input, weight, kNone, residual);
  return norm_residual_quantize(input, residual, rms_args(weight, eps), q);
}

at::Tensor layer_norm(const at::Tensor& input, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps) {
  check_tensors("baraquant::layer_norm", input, weight, bias);
  return norm(input, layer_args(weight, bias, eps));
}

TensorPair layer_norm_residual(const at::Tensor& input, const OptionalTensor& weight,
                               const OptionalTensor& bias, double eps, const at::Tensor& residual) {
  check_tensors("baraquant::layer_norm", input, weight, bias, residual);
  return norm_residual(input, residual, layer_args(weight, bias, eps));
}

TensorTriple layer_norm_quantize(const at::Tensor& input, const OptionalTensor& weight,
                                 const OptionalTensor& bias, double eps, const QuantizeArgs& q) {
  check_tensors("baraquant::layer_norm_quantize_per_token", input, weight, bias);
  return norm_quantize(input, layer_args(weight, bias, eps), q);
}

TensorQuadruple layer_norm_quantize_residual(const at::Tensor& input, const OptionalTensor& weight,
                                             const OptionalTensor& bias, double eps,
                                             const at::Tensor& residual, const QuantizeArgs& q) {
  check_tensors("baraquant::layer_norm_quantize_per_token", input, weight, bias, residual);
  return norm_residual_quantize(input, residual, layer_args(weight, bias, eps), q);
}

constexpr int64_t kSiluMul = static_cast<int64_t>(Activation::kSiluMul);

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  check_dispatchable("baraquant::silu_mul", "gate", gate);
  check_dispatchable("baraquant::silu_mul", "up", up);
  return activation(gate, up, kSiluMul);
}

TensorTriple silu_mul_quantize(const at::Tensor& gate, const at::Tensor& up,
                               const QuantizeArgs& q) {
  check_dispatchable("baraquant::silu_mul_quantize_per_token", "gate", gate);
  check_dispatchable("baraquant::silu_mul_quantize_per_token", "up", up);
  return activation_quantize(gate, up, kSiluMul, q);
}

at::Tensor gelu(const at::Tensor& input, std::string_view approximate) {
  const char* op = "baraquant::gelu";
  check_dispatchable(op, "input", input);
  return activation(input, kNone, static_cast<int64_t>(gelu_of(op, approximate)));
}

TensorTriple gelu_quantize(const at::Tensor& input, std::string_view approximate,
                           const QuantizeArgs& q) {
  const char* op = "baraquant::gelu_quantize_per_token";
  check_dispatchable(op, "input", input);
  return activation_quantize(input, kNone, static_cast<int64_t>(gelu_of(op, approximate)), q);
}

at::Tensor public_hadamard(const at::Tensor& input, int64_t block) {
  check_dispatchable("baraquant::hadamard", "input", input);
  return hadamard(input, block);
}

TensorTriple public_hadamard_quantize(const at::Tensor& input, int64_t block,
                                      const QuantizeArgs& q) {
  check_dispatchable("baraquant::hadamard_quantize_per_token", "input", input);
  return hadamard_quantize(input, block, q);
}

void define_core_ops(torch::Library& m) {
  const std::string norm = NormArgs::schema(), quantize = ", " + QuantizeArgs::schema();
  const std::string quantized = "Tensor output, Tensor scale, Tensor zero_point";
  define(m, "_norm(Tensor input, " + norm + ") -> Tensor");
  define(m, "_norm_residual(Tensor input, Tensor residual, " + norm +
                ") -> (Tensor output, Tensor residual_out)");
  define(m, "_norm_quantize(Tensor input, " + norm + quantize + ") -> (" + quantized + ")");
  define(m, "_norm_residual_quantize(Tensor input, Tensor residual, " + norm + quantize + ") -> (" +
                quantized + ", Tensor residual_out)");
  define(m, "_activation(Tensor input, Tensor? up, int activation) -> Tensor");
  define(m, "_activation_quantize(Tensor input, Tensor? up, int activation" + quantize + ") -> (" +
                quantized + ")");
  define(m, "_hadamard(Tensor input, int block) -> Tensor");
  define(m, "_hadamard_quantize(Tensor input, int block" + quantize + ") -> (" + quantized + ")");
}

// Defines a float op and the one that quantizes, and for a norm the overloads with a residual.
void define_pair(torch::Library& m, const std::string& name, const std::string& args,
                 bool has_residual) {
  const std::string keywords =
      "bool symmetric=True, int quant_min=-128, int quant_max=127, ScalarType dtype=int8";
  const std::string quantized = ") -> (Tensor output, Tensor scale, Tensor zero_point";
  const std::string quantize = name + "_quantize_per_token";
  define(m, name + "(" + args + ") -> Tensor");
  const bool all_named = args.find('*') != std::string::npos;
  define(m, quantize + "(" + args + (all_named ? ", " : ", *, ") + keywords + quantized + ")");
  if (!has_residual) return;
  define(m, name + ".residual(" + args +
                ", *, Tensor residual) -> (Tensor output, Tensor residual_out)");
  define(m, quantize + ".residual(" + args + ", *, Tensor residual, " + keywords + quantized +
                ", Tensor residual_out)");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define_pair(m, "rms_norm", "Tensor input, Tensor? weight, float eps", true);
  define_pair(m, "layer_norm", "Tensor input, Tensor? weight, Tensor? bias, float eps", true);
  define_pair(m, "silu_mul", "Tensor gate, Tensor up", false);
  define_pair(m, "gelu", "Tensor input, *, str approximate=\"none\"", false);
  define_pair(m, "hadamard", "Tensor input, int block", false);
  define_core_ops(m);
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm.residual", &rms_norm_residual);
  m.impl("rms_norm_quantize_per_token", kernel_of<&rms_norm_quantize>);
  m.impl("rms_norm_quantize_per_token.residual", kernel_of<&rms_norm_quantize_residual>);
  m.impl("layer_norm", &layer_norm);
  m.impl("layer_norm.residual", &layer_norm_residual);
  m.impl("layer_norm_quantize_per_token", kernel_of<&layer_norm_quantize>);
  m.impl("layer_norm_quantize_per_token.residual", kernel_of<&layer_norm_quantize_residual>);
  m.impl("silu_mul", &silu_mul);
  m.impl("silu_mul_quantize_per_token", kernel_of<&silu_mul_quantize>);
  m.impl("gelu", &gelu);
  m.impl("gelu_quantize_per_token", kernel_of<&gelu_quantize>);
  m.impl("hadamard", &public_hadamard);
  m.impl("hadamard_quantize_per_token", kernel_of<&public_hadamard_quantize>);
}

}  // namespace baraquant::fused
