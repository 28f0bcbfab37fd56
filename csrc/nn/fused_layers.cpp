// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "api/nn/fused.h"
#include "api/nn/inference.h"
#include "api/ops/fused.h"
#include "api/workflow.h"
#include "nn/clone.h"
#include "nn/product.h"
#include "nn/text.h"

namespace baraquant::nn {
namespace {

torch::Dtype wide_of(const torch::Tensor& input) {
  return input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

// A parameter in a dtype that the norm of an input takes: its own, or float32.
torch::Tensor matching(const torch::Tensor& parameter, const torch::Tensor& input) {
  const bool fits = !parameter.defined() || parameter.scalar_type() == input.scalar_type();
  return fits ? parameter : parameter.to(wide_of(input));
}

void check_size(const char* name, int64_t size) {
  TORCH_CHECK_VALUE(size > 0, name, ": expected normalized_shape to be positive, but got ", size);
}

}  // namespace

// ---- RMSNorm ------------------------------------------------------------------------------------

RMSNormImpl::RMSNormImpl(const RMSNormOptions& given) : FusedLayer("RMSNorm"), options(given) {
  check_size("RMSNorm", options.normalized_shape());
  const auto ones = torch::full({options.normalized_shape()}, 1 - options.offset());
  if (options.elementwise_affine()) weight = register_parameter("weight", ones);
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& input) {
  auto factor = matching(weight, input);
  if (factor.defined() && options.offset() != 0) {
    factor = factor.to(wide_of(input)) + options.offset();
  }
  const double smallest = wide_of(input) == torch::kDouble ? 0x1p-52 : 0x1p-23;
  return baraquant::rms_norm(input, maybe(factor), options.eps().value_or(smallest));
}

BARAQUANT_CLONE_BY(RMSNormImpl, copy_tensors(*copy, *this, device), options)

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::RMSNorm(" << options.normalized_shape();
  if (options.eps()) stream << ", eps=" << *options.eps();
  if (options.offset() != 0) stream << ", offset=" << options.offset();
  stream << (weight.defined() ? ")" : ", elementwise_affine=false)");
}

// ---- LayerNorm ----------------------------------------------------------------------------------

LayerNormImpl::LayerNormImpl(const LayerNormOptions& given)
    : FusedLayer("LayerNorm"), options(given) {
  check_size("LayerNorm", options.normalized_shape());
  if (!options.elementwise_affine()) return;
  weight = register_parameter("weight", torch::ones({options.normalized_shape()}));
  if (options.bias()) bias = register_parameter("bias", torch::zeros({options.normalized_shape()}));
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& input) {
  return baraquant::layer_norm(input, maybe(matching(weight, input)), maybe(matching(bias, input)),
                               options.eps());
}

BARAQUANT_CLONE_BY(LayerNormImpl, copy_tensors(*copy, *this, device), options)

void LayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::LayerNorm(" << options.normalized_shape() << ", eps=" << options.eps()
         << (weight.defined() ? ")" : ", elementwise_affine=false)");
}

// ---- GELU ---------------------------------------------------------------------------------------

GELUImpl::GELUImpl(const torch::nn::GELUOptions& given) : FusedLayer("GELU"), options(given) {
  const std::string& approximate = options.approximate();
  TORCH_CHECK_VALUE(approximate == "none" || approximate == "tanh",
                    "GELU: expected approximate to be none or tanh, but got ",
                    text::quoted(approximate));
}

torch::Tensor GELUImpl::forward(const torch::Tensor& input) {
  const std::string& approximate = options.approximate();
  const bool has_op = input.scalar_type() != torch::kDouble;
  return has_op ? baraquant::gelu(input, approximate) : at::gelu(input, approximate);
}

BARAQUANT_CLONE(GELUImpl, options)

void GELUImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::GELU(approximate=" << text::quoted(options.approximate()) << ")";
}

// ---- GatedMLP -----------------------------------------------------------------------------------

namespace {

// The layer, if it may get integers in place of a floating input.
QuantizedLinearImpl* takes_integers(torch::nn::Module& module, const torch::Tensor& input) {
  auto* layer = module.as<QuantizedLinearImpl>();
  const bool is_recorded = torch::GradMode::is_enabled() && input.requires_grad();
  if (layer == nullptr || layer->granularity() != "per_token" || is_recorded) return nullptr;
  return layer->smooth.defined() ? nullptr : layer;
}

// Whether two layers quantize an input to the same integers.
bool is_alike(const QuantizedLinearImpl& first, const QuantizedLinearImpl& second) {
  return first.symmetric() == second.symmetric() && first.bits() == second.bits() &&
         first.rotate() == second.rotate();
}

}  // namespace

GatedMLPImpl::GatedMLPImpl(const std::shared_ptr<torch::nn::Module>& gate,
                           const std::shared_ptr<torch::nn::Module>& up,
                           const std::shared_ptr<torch::nn::Module>& down, Names names)
    : FusedLayer("GatedMLP"), names_(std::move(names)) {
  register_module(names_[0], gate);
  register_module(names_[1], up);
  register_module(names_[2], down);
}

torch::Tensor GatedMLPImpl::forward(const torch::Tensor& input) {
  const auto layers = named_children();
  auto* gate = takes_integers(*layers[names_[0]], input);
  auto* up = takes_integers(*layers[names_[1]], input);
  torch::Tensor left, right;
  if (gate != nullptr && up != nullptr && is_alike(*gate, *up)) {
    const QuantizedInput rows = gate->quantize(input);
    left = gate->multiply(rows);
    right = up->multiply(rows);
  } else {
    left = call(*this, names_[0], input);
    right = call(*this, names_[1], input);
  }
  const bool has_op = left.scalar_type() != torch::kDouble;
  auto* down = has_op ? takes_integers(*layers[names_[2]], left) : nullptr;
  if (down == nullptr || down->rotate().has_value()) {
    const auto hidden = has_op ? silu_mul(left, right) : at::silu(left) * right;
    return call(*this, names_[2], hidden);
  }
  const int64_t limit = int64_t(1) << (down->bits() - 1);
  auto [values, scale, zero_point] =
      silu_mul_quantize_per_token(left, right, down->symmetric(), -limit, limit - 1);
  return down->multiply(
      {std::move(values), std::move(scale), std::move(zero_point), left.scalar_type()});
}

BARAQUANT_CLONE(GatedMLPImpl, named_children()[names_[0]]->clone(device),
                named_children()[names_[1]]->clone(device),
                named_children()[names_[2]]->clone(device), names_)

void GatedMLPImpl::pretty_print(std::ostream& stream) const { stream << "baraquant::nn::GatedMLP"; }

}  // namespace baraquant::nn
