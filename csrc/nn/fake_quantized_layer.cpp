// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "api/nn/int4.h"
#include "api/nn/training.h"
#include "frame/dtypes.h"
#include "nn/clone.h"
#include "nn/product.h"
#include "search/range.h"

namespace baraquant::nn {

namespace {

// Options with the range and the symmetry of a configuration.
template <typename Options>
Options range_of(const TensorConfig& config) {
  return Options()
      .quant_min(config.quant_min())
      .quant_max(config.quant_max())
      .symmetric(config.symmetric());
}

// The same for a learned scale beside a weight.
LearnedFakeQuantizeOptions learned_of(const TensorConfig& config, const QuantConfig& scheme,
                                      const torch::Tensor& weight) {
  return range_of<LearnedFakeQuantizeOptions>(config)
      .device(weight.device())
      .dtype(compute_dtype(weight.scalar_type()))
      .master(scheme.master());
}

std::optional<int64_t> channel_axis(const std::string& granularity) {
  return granularity == "per_channel" ? std::optional<int64_t>(0) : std::nullopt;
}

std::shared_ptr<Quantizer> learned_of_weight(const QuantConfig& scheme, const torch::Tensor& weight,
                                             std::optional<int64_t> size) {
  const auto& config = scheme.weight();
  if (config.group_factors()) {
    auto factors = std::make_shared<LearnedFakeQuantizeInt4Impl>(
        LearnedFakeQuantizeInt4Options(*size, {weight.size(0), weight.size(1) / *size})
            .symmetric(config.symmetric())
            .bits(config.bits())
            .scale_rule(scheme.scale_rule())
            .device(weight.device())
            .dtype(compute_dtype(weight.scalar_type()))
            .master(scheme.master()));
    if (!weight.is_meta()) factors->initialize(weight);
    return factors;
  }
  const auto& granularity = config.granularity();
  std::vector<int64_t> shape = {1};
  if (granularity == "per_channel") shape = {weight.size(0)};
  if (granularity == "per_group") shape = {weight.size(0), weight.size(-1) / *size};
  auto options = learned_of(config, scheme, weight);
  options.granularity(granularity).axis(channel_axis(granularity)).group_size(size).shape(shape);
  options.scale_dtype(scheme.scale_dtype()).scale_rule(scheme.scale_rule());
  auto learned = std::make_shared<LearnedFakeQuantizeImpl>(options);
  if (!weight.is_meta()) learned->initialize(weight);
  return learned;
}

// The quantizer of a weight `[channels, ...]`; of a matrix for groups of `size`.
std::shared_ptr<Quantizer> of_weight(const QuantConfig& scheme, const torch::Tensor& weight,
                                     std::optional<int64_t> size) {
  const auto& config = scheme.weight();
  const auto& granularity = config.granularity();
  if (config.learned()) return learned_of_weight(scheme, weight, size);
  if (config.group_factors()) {
    return std::make_shared<FakeQuantizeInt4Impl>(
        FakeQuantizeInt4Options(*size).symmetric(config.symmetric()).bits(config.bits()));
  }
  auto options = range_of<FakeQuantizeOptions>(config).scale_dtype(scheme.scale_dtype());
  if (config.dynamic()) {
    options.mode("dynamic").granularity(granularity).axis(channel_axis(granularity));
    options.group_size(size);
    if (config.ternary()) return std::make_shared<FakeQuantizeTernaryImpl>(options);
    return std::make_shared<FakeQuantizeImpl>(options);
  }
  options.mode("observed")
      .averaging_constant(1.0);  // the current weight, until the observer is disabled
  if (granularity != "per_tensor") {
    const auto scales = size.has_value() ? weight.numel() / *size : weight.size(0);
    options.granularity("per_channel").axis(0).channels(scales);
  }
  auto observed = std::make_shared<FakeQuantizeImpl>(options);
  observed->to(weight.device(), compute_dtype(weight.scalar_type()));
  const torch::NoGradGuard no_grad;
  observed->forward(size.has_value() ? weight.reshape({-1, *size}) : weight);
  return observed;
}

std::shared_ptr<Quantizer> of_activation(const std::optional<TensorConfig>& config,
                                         const QuantConfig& scheme, const torch::Tensor& weight) {
  if (!config.has_value()) return nullptr;
  if (config->learned()) {
    return std::make_shared<LearnedFakeQuantizeImpl>(
        learned_of(*config, scheme, weight).per_sample(true));
  }
  auto options = range_of<FakeQuantizeOptions>(*config);
  if (config->dynamic()) {
    options.mode("dynamic").granularity(config->granularity()).group_size(config->group_size());
    return std::make_shared<FakeQuantizeImpl>(options);
  }
  options.mode("observed");
  if (scheme.observer() == "moving_average") options.averaging_constant(search::kAveragingConstant);
  auto observed = std::make_shared<FakeQuantizeImpl>(options);
  // Evaluation before the first batch gives NaN, not values that look valid.
  observed->scale.fill_(std::numeric_limits<double>::quiet_NaN());
  observed->to(weight.device(), compute_dtype(weight.scalar_type()));
  return observed;
}

}  // namespace

FakeQuantizedLayer::FakeQuantizedLayer(std::string name, const torch::Tensor& given,
                                       const torch::Tensor& given_bias)
    : Layer(std::move(name)), config_(W8A8()) {
  weight = register_parameter("weight", given, given.requires_grad());
  if (given_bias.defined()) {
    bias = register_parameter("bias", given_bias, given_bias.requires_grad());
  }
}

void FakeQuantizedLayer::set_quantizers(const QuantConfig& config,
                                        const std::optional<TensorConfig>& activation,
                                        int64_t positions) {
  config_ = config;
  const auto& how = config.weight();
  is_grouped_ = how.group_size().has_value();
  const auto size = is_grouped_ ? std::optional(*how.group_size() * positions) : std::nullopt;
  fold_ = !is_grouped_ || how.dynamic() || how.learned() ? 0 : *size;
  weight_fake_quant = of_weight(config, rows_of_weight(), size);
  input_fake_quant = of_activation(activation, config, weight);
  register_module("weight_fake_quant", weight_fake_quant);
  if (input_fake_quant != nullptr) register_module("input_fake_quant", input_fake_quant);
  if (weight.is_meta()) return;  // to which LibTorch moves nothing
  for (const auto& quantizer : children()) quantizer->to(weight.device());
}

torch::Tensor FakeQuantizedLayer::rounded_to_master(const torch::Tensor& numbers) const {
  return round_master(numbers, config_.master());
}

torch::Tensor FakeQuantizedLayer::weight_to_round() const { return rounded_to_master(weight); }

torch::Tensor FakeQuantizedLayer::bias_to_add() const { return rounded_to_master(bias); }

torch::Tensor FakeQuantizedLayer::rows_of_weight() const {
  const auto values = weight_to_round().detach();
  return is_grouped_ ? values.flatten(1) : values;
}

torch::Tensor FakeQuantizedLayer::as_rows(const torch::Tensor& values) const {
  if (fold_ > 0) return values.reshape({-1, fold_});
  return is_grouped_ ? values.flatten(1) : values;
}

Quantized FakeQuantizedLayer::quantized_weight() {
  const auto values = weight_to_round().detach();
  auto [integers, scale, zero_point] = weight_fake_quant->quantize(as_rows(values));
  integers = integers.reshape(values.sizes()).contiguous();
  const auto channels = values.size(0);
  if (fold_ > 0) {
    const std::vector<int64_t> shape = {channels, scale.numel() / channels};
    scale = scale.reshape(shape);
    zero_point = zero_point.reshape(shape);
  } else if (scale.dim() < 2 && scale.numel() == 1) {
    scale = scale.reshape({1}).expand({channels}).contiguous();
    zero_point = zero_point.reshape({1}).expand({channels}).contiguous();
  }
  return {integers, scale, zero_point};
}

torch::Tensor FakeQuantizedLayer::fake_quantized_weight() {
  auto rows = as_rows(weight_to_round());
  rows = is_training() ? weight_fake_quant->forward(rows) : weight_fake_quant->round(rows);
  return is_grouped_ || fold_ > 0 ? rows.reshape(weight.sizes()) : rows;
}

torch::Tensor FakeQuantizedLayer::rounded_input(const torch::Tensor& input) {
  if (input_fake_quant == nullptr) return input;
  return is_training() ? input_fake_quant->forward(input) : input_fake_quant->round(input);
}

void FakeQuantizedLayer::set_weight_quantizer(std::shared_ptr<Quantizer> quantizer) {
  weight_fake_quant = replace_module("weight_fake_quant", std::move(quantizer));
}

void FakeQuantizedLayer::share_weight_quantizer(const FakeQuantizedLayer& other) {
  set_weight_quantizer(other.weight_fake_quant);
}

void FakeQuantizedLayer::set_input_quantizer(std::shared_ptr<Quantizer> quantizer) {
  const bool is_registered = input_fake_quant != nullptr;
  input_fake_quant = std::move(quantizer);
  if (input_fake_quant == nullptr) {
    if (is_registered) unregister_module("input_fake_quant");
    // What its weight's factors give is int8, with a scale for each channel.
    const bool is_int8 = config_.weight().group_factors();
    const auto floating = config_.with_floating_input();
    const auto master = config_.master();
    config_ =
        is_int8 ? QuantConfig(TensorConfig(8)).rotate(floating.rotate()).master(master) : floating;
  } else if (is_registered) {
    replace_module("input_fake_quant", input_fake_quant);
  } else {
    register_module("input_fake_quant", input_fake_quant);
  }
}

void FakeQuantizedLayer::clone_into(FakeQuantizedLayer& copy,
                                    const std::optional<torch::Device>& device) const {
  copy.set_weight_quantizer(cloned(weight_fake_quant, device));
  copy.input_fake_quant = cloned(input_fake_quant, device);
  if (input_fake_quant != nullptr) copy.replace_module("input_fake_quant", copy.input_fake_quant);
  copy.train(is_training());
}

}  // namespace baraquant::nn
