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

const OptionalTensor kNone;

// The arguments of each norm besides its input, as the public ops take them.
struct RmsArgs {
  const OptionalTensor& weight;
  double eps;

  static constexpr int kFields = 2;
  NormArgs args() const { return {.weight = weight, .bias = kNone, .eps = eps, .centered = false}; }
};

struct LayerArgs {
  const OptionalTensor &weight, &bias;
  double eps;

  static constexpr int kFields = 3;
  NormArgs args() const { return {.weight = weight, .bias = bias, .eps = eps, .centered = true}; }
};

void check_tensors(const FusedName& op, const at::Tensor& input, const NormArgs& args,
                   const at::Tensor* residual = nullptr) {
  check_dispatchable(op, "input", input);
  if (args.weight) check_dispatchable(op, "weight", *args.weight);
  if (args.bias) check_dispatchable(op, "bias", *args.bias);
  if (residual != nullptr) check_dispatchable(op, "residual", *residual);
}

template <typename Own>
at::Tensor public_norm(const at::Tensor& input, const Own& own) {
  const NormArgs args = own.args();
  check_tensors(name_of(args, false), input, args);
  return norm(input, args);
}

template <typename Own>
TensorPair public_norm_residual(const at::Tensor& input, const Own& own,
                                const at::Tensor& residual) {
  const NormArgs args = own.args();
  check_tensors(name_of(args, false), input, args, &residual);
  return norm_residual(input, residual, args);
}

template <typename Own>
TensorTriple public_norm_quantize(const at::Tensor& input, const Own& own, const QuantizeArgs& q) {
  const NormArgs args = own.args();
  check_tensors(name_of(args, true), input, args);
  return norm_quantize(input, args, q);
}

template <typename Own>
TensorQuadruple public_norm_residual_quantize(const at::Tensor& input, const Own& own,
                                              const at::Tensor& residual, const QuantizeArgs& q) {
  const NormArgs args = own.args();
  check_tensors(name_of(args, true), input, args, &residual);
  return norm_residual_quantize(input, residual, args, q);
}

template <typename Own>
void implement_norm(torch::Library& m, const std::string& name) {
  const std::string quantize = name + "_quantize_per_token";
  m.impl(name.c_str(), kernel_of<&public_norm<Own>>);
  m.impl((name + ".residual").c_str(), kernel_of<&public_norm_residual<Own>>);
  m.impl(quantize.c_str(), kernel_of<&public_norm_quantize<Own>>);
  m.impl((quantize + ".residual").c_str(), kernel_of<&public_norm_residual_quantize<Own>>);
}

ActivationArgs silu_mul_args(const FusedName& op, const at::Tensor& gate,
                             const OptionalTensor& up) {
  check_dispatchable(op, "gate", gate);
  check_dispatchable(op, "up", *up);
  return {gate, up, static_cast<int64_t>(Activation::kSiluMul)};
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  return activation(silu_mul_args({"silu_mul", false}, gate, up));
}

TensorTriple silu_mul_quantize(const at::Tensor& gate, const at::Tensor& up,
                               const QuantizeArgs& q) {
  return activation_quantize(silu_mul_args({"silu_mul", true}, gate, up), q);
}

ActivationArgs gelu_args(const FusedName& op, const at::Tensor& input,
                         std::string_view approximate) {
  check_dispatchable(op, "input", input);
  return {input, kNone, static_cast<int64_t>(gelu_of(op, approximate))};
}

at::Tensor gelu(const at::Tensor& input, std::string_view approximate) {
  return activation(gelu_args({"gelu", false}, input, approximate));
}

TensorTriple gelu_quantize(const at::Tensor& input, std::string_view approximate,
                           const QuantizeArgs& q) {
  return activation_quantize(gelu_args({"gelu", true}, input, approximate), q);
}

at::Tensor public_hadamard(const HadamardArgs& args) {
  check_dispatchable("baraquant::hadamard", "input", args.input);
  return hadamard(args);
}

TensorTriple public_hadamard_quantize(const HadamardArgs& args, const QuantizeArgs& q) {
  check_dispatchable("baraquant::hadamard_quantize_per_token", "input", args.input);
  return hadamard_quantize(args, q);
}

void define_core_ops(torch::Library& m) {
  const std::string norm = NormArgs::kSchema, activation = ActivationArgs::kSchema,
                    hadamard = HadamardArgs::kSchema,
                    quantize = std::string(", ") + QuantizeArgs::kSchema;
  const std::string quantized = "Tensor output, Tensor scale, Tensor zero_point";
  define(m, "_norm(Tensor input, " + norm + ") -> Tensor");
  define(m, "_norm_residual(Tensor input, Tensor residual, " + norm +
                ") -> (Tensor output, Tensor residual_out)");
  define(m, "_norm_quantize(Tensor input, " + norm + quantize + ") -> (" + quantized + ")");
  define(m, "_norm_residual_quantize(Tensor input, Tensor residual, " + norm + quantize + ") -> (" +
                quantized + ", Tensor residual_out)");
  define(m, "_activation(" + activation + ") -> Tensor");
  define(m, "_activation_quantize(" + activation + quantize + ") -> (" + quantized + ")");
  define(m, "_hadamard(" + hadamard + ") -> Tensor");
  define(m, "_hadamard_quantize(" + hadamard + quantize + ") -> (" + quantized + ")");
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
  implement_norm<RmsArgs>(m, "rms_norm");
  implement_norm<LayerArgs>(m, "layer_norm");
  m.impl("silu_mul", &silu_mul);
  m.impl("silu_mul_quantize_per_token", kernel_of<&silu_mul_quantize>);
  m.impl("gelu", &gelu);
  m.impl("gelu_quantize_per_token", kernel_of<&gelu_quantize>);
  m.impl("hadamard", kernel_of<&public_hadamard>);
  m.impl("hadamard_quantize_per_token", kernel_of<&public_hadamard_quantize>);
}

}  // namespace baraquant::fused
