// SPDX-License-Identifier: BSD-3-Clause
// FakeQuantizedLinear, FakeQuantizedConv2d and FakeQuantizedEmbedding.
#include <ATen/autocast_mode.h>
#include <ATen/ops/embedding.h>

#include <ostream>

#include "api/nn/int4.h"
#include "api/nn/training.h"
#include "api/ops.h"
#include "int8_mm/math.h"
#include "nn/clone.h"
#include "nn/product.h"

namespace baraquant::nn {

namespace {

// Whether the converted layer multiplies integers by integers. It does not if the terms of a sum have
// several floating scales (groups), or if the weight has a zero point.
bool is_integer_product(const QuantConfig& config) {
  const auto& weight = config.weight();
  const auto& activation = config.activation();
  const bool is_flat = weight.symmetric() && weight.granularity() != "per_group";
  return activation.has_value() && (is_flat || weight.group_factors()) &&
         (activation->granularity() == "per_tensor" || activation->granularity() == "per_token");
}

// The options of a Conv2d, from those that torch::nn::Conv2d stores.
torch::nn::Conv2dOptions like_conv2d(const torch::nn::detail::ConvNdOptions<2>& options) {
  return torch::nn::Conv2dOptions(options.in_channels(), options.out_channels(),
                                  options.kernel_size())
      .stride(options.stride())
      .padding(options.padding())
      .dilation(options.dilation())
      .groups(options.groups())
      .bias(options.bias())
      .padding_mode(options.padding_mode());
}

void check_groups(const TensorConfig& config, int64_t features, const char* name) {
  const auto size = config.group_size();
  TORCH_CHECK_VALUE(!size.has_value() || (*size <= features && features % *size == 0),
                    "expected group_size to divide ", name, " (", features, "), but got ",
                    size.value_or(0));
}

void check_linear(const QuantConfig& config, int64_t features) {
  check_groups(config.weight(), features, "in_features");
  const auto& activation = config.activation();
  if (!activation.has_value()) return;
  check_groups(*activation, features, "in_features");
  const auto limit = activation->symmetric() ? int8_mm::kMaxDepth : int8_mm::kMaxShiftedDepth;
  TORCH_CHECK_VALUE(!is_integer_product(config) || features <= limit,
                    "expected in_features to be at most ", limit, " for an exact int32 product",
                    activation->symmetric() ? "" : " with a zero point", ", but got ", features);
}

// The configuration for a convolution: its input is per tensor, or floating.
QuantConfig conv_config(const QuantConfig& config) {
  const auto& activation = config.activation();
  if (!activation.has_value()) return config.with_rotation(0);
  const bool per_tensor = activation->granularity() == "per_tensor";
  const bool keeps = per_tensor && config.conv_inputs().value_or(true);
  return (keeps ? config.with_float_scales() : config.with_floating_input()).with_rotation(0);
}

}  // namespace

// ---- FakeQuantizedLinear ------------------------------------------------------------------------

FakeQuantizedLinearImpl::FakeQuantizedLinearImpl(const FakeQuantizedLinearOptions& options)
    : FakeQuantizedLinearImpl(
          *torch::nn::Linear(torch::nn::LinearOptions(options.in_features(), options.out_features())
                                 .bias(options.bias())),
          options.config()) {}

FakeQuantizedLinearImpl::FakeQuantizedLinearImpl(const torch::nn::LinearImpl& linear,
                                                 const QuantConfig& config, bool rotates)
    : FakeQuantizedLinearImpl(linear.weight, linear.bias, config, rotates) {
  train(linear.is_training());
}

FakeQuantizedLinearImpl::FakeQuantizedLinearImpl(const torch::Tensor& given,
                                                 const torch::Tensor& given_bias,
                                                 const QuantConfig& given_config, bool rotates)
    : FakeQuantizedLayer("FakeQuantizedLinear", given, given_bias) {
  const auto config = given_config.with_rotation(in_features());
  check_linear(config, in_features());
  const auto block = config.rotate();
  awaits_rotation_ = block.has_value();
  if (block.has_value()) {
    register_buffer("rotation", torch::scalar_tensor(*block, weight.options().dtype(torch::kLong)));
  }
  // The quantizers see the rotated weight; those of a dynamic scale do not look at it.
  const auto parameter = weight;
  if (awaits_rotation_ && !config.weight().dynamic()) weight = hadamard(weight.detach(), *block);
  set_quantizers(config, config.activation());
  weight = parameter;
  if (rotates) rotate_weight();
  is_integer_ = is_integer_product(config);
  is_whole_ = config.trains_on_integers();
}

void FakeQuantizedLinearImpl::rotate_weight() {
  if (!awaits_rotation_) return;
  const torch::NoGradGuard no_grad;
  weight.copy_(hadamard(weight, *config().rotate()));
  awaits_rotation_ = false;
}

void FakeQuantizedLinearImpl::copy_rotated_weight() {
  if (!awaits_rotation_) return;
  weight = hadamard(weight.detach(), *config().rotate());
  awaits_rotation_ = false;
}

void FakeQuantizedLinearImpl::drop_rotated_weight() {
  const auto parameter = named_parameters(/*recurse=*/false)["weight"];
  awaits_rotation_ |= !parameter.is_same(weight);
  weight = parameter;
}

torch::Tensor FakeQuantizedLinearImpl::forward(const torch::Tensor& given) {
  const auto input = config().rotate().has_value() ? hadamard(given, *config().rotate()) : given;
  if (is_whole_ && is_integer()) {
    // Under autocast qat_linear would cast the input, which no converted layer does.
    const bool is_on = weight_fake_quant->rounds() && input_fake_quant->rounds();
    const bool is_autocast = at::autocast::is_autocast_enabled(input.device().type());
    if (is_training() ? is_on : !is_autocast) return whole(input);
  }
  if (is_training()) return float_output(input);
  return with_gradient(is_integer() ? integer_output(input) : weight_only_output(input),
                       input.requires_grad() || weight.requires_grad(),
                       [&] { return float_output(input); });
}

torch::Tensor FakeQuantizedLinearImpl::whole(const torch::Tensor& input) {
  const auto &how = config().weight(), &activation = *config().activation();
  std::optional<torch::Tensor> qweight, scale;
  auto smooth = weight_to_round();
  if (how.gives_integers()) {
    std::tie(qweight, scale, std::ignore) = quantized_weight();
    auto* factors = dynamic_cast<RoundsToInt4*>(weight_fake_quant.get());
    if (factors != nullptr) smooth = factors->smooth(smooth);
  }
  return qat_linear(input, smooth, maybe(bias_to_add()), activation.symmetric(), how.quant_min(),
                    how.quant_max(), activation.quant_min(), activation.quant_max(),
                    config().backward(), config().rounding(), qweight, scale);
}

torch::Tensor FakeQuantizedLinearImpl::float_output(const torch::Tensor& input) {
  const auto rounded = fake_quantized_weight();
  return float_linear(rounded_input(input), rounded, bias_to_add());
}

torch::Tensor FakeQuantizedLinearImpl::integer_output(const torch::Tensor& input) {
  const auto [integers, scale, zero_point] = input_fake_quant->quantize(input.detach());
  const auto [qweight, weight_scale, zeros] = quantized_weight();
  const bool symmetric = config().activation()->symmetric();
  return int8_linear(integers, qweight, scale, weight_scale, constant_bias(),
                     symmetric ? std::nullopt : std::optional(zero_point), std::nullopt,
                     input.scalar_type());
}

torch::Tensor FakeQuantizedLinearImpl::weight_only_output(const torch::Tensor& input) {
  const auto rows = rounded_input(input.detach());
  const auto [qweight, scale, zeros] = quantized_weight();
  const auto& how = config().weight();
  const auto size = how.group_factors() ? std::nullopt : how.group_size();
  return weight_only_linear(rows, qweight, scale, constant_bias(), zeros, size);
}

std::optional<torch::Tensor> FakeQuantizedLinearImpl::constant_bias() const {
  return bias.defined() ? maybe(bias_to_add().detach()) : std::nullopt;
}

BARAQUANT_CLONE_BY(FakeQuantizedLinearImpl, copy->awaits_rotation_ = awaits_rotation_;
                   clone_into(*copy, device), cloned_parameter(weight, device),
                   cloned_parameter(bias, device), config(), /*rotates=*/false)

void FakeQuantizedLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantizedLinear(in_features=" << in_features()
         << ", out_features=" << out_features() << ", bias=" << (bias.defined() ? "true" : "false")
         << ", " << config().str() << ")";
}

// ---- FakeQuantizedConv2d ------------------------------------------------------------------------

FakeQuantizedConv2dImpl::FakeQuantizedConv2dImpl(const torch::nn::Conv2dOptions& given,
                                                 const QuantConfig& config)
    : FakeQuantizedConv2dImpl(*torch::nn::Conv2d(given), config) {}

FakeQuantizedConv2dImpl::FakeQuantizedConv2dImpl(const torch::nn::Conv2dImpl& conv,
                                                 const QuantConfig& config)
    : FakeQuantizedConv2dImpl(like_conv2d(conv.options), conv.weight, conv.bias, config) {
  train(conv.is_training());
}

FakeQuantizedConv2dImpl::FakeQuantizedConv2dImpl(const torch::nn::Conv2dOptions& given,
                                                 const torch::Tensor& given_weight,
                                                 const torch::Tensor& given_bias,
                                                 const QuantConfig& config)
    : FakeQuantizedLayer("FakeQuantizedConv2d", given_weight, given_bias), options(given) {
  const auto own = conv_config(config);
  check_groups(own.weight(), options.in_channels() / options.groups(), "in_channels / groups");
  set_quantizers(own, own.activation(), weight.size(2) * weight.size(3));
}

torch::Tensor FakeQuantizedConv2dImpl::forward(const torch::Tensor& input) {
  if (is_training() || !is_integer()) return float_output(input);
  return with_gradient(integer_output(input), input.requires_grad() || weight.requires_grad(),
                       [&] { return float_output(input); });
}

bool FakeQuantizedConv2dImpl::is_integer() const {
  const auto& how = config().weight();
  const bool is_flat = how.symmetric() && !how.group_size().has_value();
  const bool rounds = input_fake_quant != nullptr && config().activation().has_value();
  return is_integer_conv(rounds, is_flat, weight.sizes(), options.groups());
}

torch::Tensor FakeQuantizedConv2dImpl::float_output(const torch::Tensor& input) {
  const auto rounded = fake_quantized_weight();
  return float_conv2d(rounded_input(input), rounded, bias_to_add(), options);
}

torch::Tensor FakeQuantizedConv2dImpl::integer_output(const torch::Tensor& input) {
  const auto [qweight, weight_scale, zeros] = quantized_weight();
  return integer_conv2d(input, *input_fake_quant,
                        {.qweight = channels_inside(qweight),
                         .weight_scale = weight_scale,
                         .bias = bias.defined() ? bias_to_add().detach() : bias,
                         .has_zero_point = !config().activation()->symmetric()},
                        options);
}

BARAQUANT_CLONE_BY(FakeQuantizedConv2dImpl, clone_into(*copy, device), options,
                   cloned_parameter(weight, device), cloned_parameter(bias, device), config())

void FakeQuantizedConv2dImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantizedConv2d(" << options.in_channels() << ", "
         << options.out_channels() << ", kernel_size=" << options.kernel_size() << ", "
         << config().str() << ")";
}

// ---- FakeQuantizedEmbedding ---------------------------------------------------------------------

FakeQuantizedEmbeddingImpl::FakeQuantizedEmbeddingImpl(const torch::nn::EmbeddingOptions& given,
                                                       const QuantConfig& config)
    : FakeQuantizedEmbeddingImpl(*torch::nn::Embedding(given), config) {}

FakeQuantizedEmbeddingImpl::FakeQuantizedEmbeddingImpl(const torch::nn::EmbeddingImpl& embedding,
                                                       const QuantConfig& config)
    : FakeQuantizedLayer("FakeQuantizedEmbedding", embedding.weight, {}),
      options(embedding.options) {
  const auto& how = config.weight();
  TORCH_CHECK_VALUE(!options.max_norm().has_value(), "expected no max_norm, but got ",
                    options.max_norm().value_or(0.0));
  check_groups(how, weight.size(1), "embedding_dim");
  options._weight({});
  set_quantizers(config.with_floating_input().with_rotation(0), std::nullopt);
  rounds_rows_ = how.dynamic() && how.granularity() != "per_tensor";
  train(embedding.is_training());
}

torch::Tensor FakeQuantizedEmbeddingImpl::rows(const torch::Tensor& input,
                                               const torch::Tensor& table) {
  return at::embedding(table, input, options.padding_idx().value_or(-1),
                       options.scale_grad_by_freq(), options.sparse());
}

torch::Tensor FakeQuantizedEmbeddingImpl::forward(const torch::Tensor& input) {
  if (!rounds_rows_) return rows(input, fake_quantized_weight());
  auto found = rounded_to_master(rows(input, weight));
  if (!weight_fake_quant->rounds() && is_training()) return found;
  const auto& how = config().weight();
  if (config().scale_dtype() != "float32" || how.ternary()) {
    // No op of rows does it. An empty batch has no rows.
    if (found.numel() == 0) return found;
    const auto table = found.reshape({-1, found.size(-1)});
    return weight_fake_quant->round(table).reshape(found.sizes());
  }
  if (how.group_size().has_value()) {
    return dynamic_fake_quantize_per_group(found, *how.group_size(), -1, how.quant_min(),
                                           how.quant_max(), how.symmetric());
  }
  return dynamic_fake_quantize_per_token(found, how.quant_min(), how.quant_max(), how.symmetric());
}

BARAQUANT_CLONE_BY(FakeQuantizedEmbeddingImpl,
                   copy->weight.set_requires_grad(weight.requires_grad());
                   clone_into(*copy, device),
                   *torch::nn::Embedding(torch::nn::EmbeddingOptions(options)._weight(
                       cloned_parameter(weight, device))),
                   config())

void FakeQuantizedEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantizedEmbedding(" << weight.size(0) << ", " << weight.size(1)
         << ", weight=" << config().weight_str() << ")";
}

}  // namespace baraquant::nn
