// SPDX-License-Identifier: BSD-3-Clause
// The ops of the fused family: schemas, and the public ops, which call core ops. All work on the
// vectors along the last dimension. What each computes, and what its arguments are, stands in ops.txt;
// the arithmetic is in math.h and elementary.h. With a residual, x is input + residual, rounded to the
// input's dtype, and is returned as well. Outputs are contiguous.
#include "frame/checks.h"
#include "fused/checks.h"
#include "fused/core_ops.h"
#include "granularity/public_op.h"

namespace baraquant::fused {
namespace {

const OptionalTensor kNone;

// The arguments of each norm, as the public ops take them.
struct RmsArgs {
  const at::Tensor& input;
  const OptionalTensor& weight;
  double eps;

  static constexpr int kFields = 3;
  Norm norm() const { return {.weight = weight, .bias = kNone, .eps = eps, .centered = false}; }
};

struct LayerArgs {
  const at::Tensor& input;
  const OptionalTensor &weight, &bias;
  double eps;

  static constexpr int kFields = 4;
  Norm norm() const { return {.weight = weight, .bias = bias, .eps = eps, .centered = true}; }
};

void check_tensors(const FusedName& op, const at::Tensor& input, const Norm& norm) {
  check_dispatchable(op, "input", input);
  if (norm.weight) check_dispatchable(op, "weight", *norm.weight);
  if (norm.bias) check_dispatchable(op, "bias", *norm.bias);
}

// Below, `core` is the core op, and q is absent or one QuantizeArgs.

template <const auto& core, typename Own, typename... Q>
auto public_norm(const Own& own, const Q&... q) {
  const NormArgs args{own.input, own.norm()};
  check_tensors(name_of(args, sizeof...(q) > 0), own.input, args.norm);
  return core(args, q...);
}

template <const auto& core, typename Own, typename... Q>
auto public_norm_residual(const Own& own, const at::Tensor& residual, const Q&... q) {
  const ResidualNormArgs args{own.input, residual, own.norm()};
  const FusedName op = name_of(args, sizeof...(q) > 0);
  check_tensors(op, own.input, args.norm);
  check_dispatchable(op, "residual", residual);
  return core(args, q...);
}

template <const auto& core, typename... Q>
auto silu_mul(const at::Tensor& gate, const at::Tensor& up, const Q&... q) {
  const FusedName op{"silu_mul", sizeof...(q) > 0};
  check_dispatchable(op, "gate", gate);
  check_dispatchable(op, "up", up);
  return core(ActivationArgs{gate, up, static_cast<int64_t>(Activation::kSiluMul)}, q...);
}

template <const auto& core, typename... Q>
auto gelu(const at::Tensor& input, std::string_view approximate, const Q&... q) {
  const FusedName op{"gelu", sizeof...(q) > 0};
  check_dispatchable(op, "input", input);
  return core(ActivationArgs{input, kNone, static_cast<int64_t>(gelu_of(op, approximate))}, q...);
}

template <const auto& core, typename... Q>
auto public_hadamard(const HadamardArgs& args, const Q&... q) {
  check_dispatchable(name_of(args, sizeof...(q) > 0), "input", args.input);
  return core(args, q...);
}

template <typename Own>
void implement_norm(torch::Library& m, const std::string& name) {
  const std::string quantize = name + "_quantize_per_token";
  m.impl(name.c_str(), kernel_of<&public_norm<norm, Own>>);
  m.impl((name + ".residual").c_str(), kernel_of<&public_norm_residual<norm_residual, Own>>);
  m.impl(quantize.c_str(), kernel_of<&public_norm<norm_quantize, Own, QuantizeArgs>>);
  m.impl((quantize + ".residual").c_str(),
         kernel_of<&public_norm_residual<norm_residual_quantize, Own, QuantizeArgs>>);
}

void define_core_ops(torch::Library& m) {
  const std::string norm = Norm::kSchema, activation = ActivationArgs::kSchema,
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
  m.impl("silu_mul", kernel_of<&silu_mul<activation>>);
  m.impl("silu_mul_quantize_per_token", kernel_of<&silu_mul<activation_quantize, QuantizeArgs>>);
  m.impl("gelu", kernel_of<&gelu<activation>>);
  m.impl("gelu_quantize_per_token", kernel_of<&gelu<activation_quantize, QuantizeArgs>>);
  m.impl("hadamard", kernel_of<&public_hadamard<hadamard>>);
  m.impl("hadamard_quantize_per_token",
         kernel_of<&public_hadamard<hadamard_quantize, QuantizeArgs>>);
}

}  // namespace baraquant::fused
