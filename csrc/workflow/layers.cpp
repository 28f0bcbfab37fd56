// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/layers.h"

#include <ATen/TensorUtils.h>
#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <type_traits>
#include <typeinfo>

#include "nn/configs.h"

namespace baraquant::workflow {

namespace {

template <typename Float>
bool is_exactly(const torch::nn::Module& module) {
  return typeid(module) == typeid(Float);
}

template <typename Float, typename Training>
std::shared_ptr<nn::FakeQuantizedLayer> prepare(const torch::nn::Module& module,
                                                const QuantConfig& config) {
  const auto& layer = dynamic_cast<const Float&>(module);
  if constexpr (std::is_same_v<Training, nn::FakeQuantizedLinearImpl>) {
    // No weight is rotated before all decisions are made.
    return std::make_shared<Training>(layer, config, /*rotates=*/false);
  } else {
    return std::make_shared<Training>(layer, config);
  }
}

std::string no_reason(const torch::nn::Module&) { return ""; }

std::string why_not_embedding(const torch::nn::Module& module) {
  const auto& embedding = dynamic_cast<const torch::nn::EmbeddingImpl&>(module);
  return embedding.options.max_norm().has_value() ? "its max_norm rewrites the weight" : "";
}

template <typename Float, typename Training>
constexpr Kind kind(std::string (*why_not)(const torch::nn::Module&), bool keeps_input) {
  return {is_exactly<Float>, prepare<Float, Training>, why_not, keeps_input};
}

constexpr std::array kinds = {
    kind<torch::nn::LinearImpl, nn::FakeQuantizedLinearImpl>(no_reason, /*keeps_input=*/false),
    kind<torch::nn::Conv2dImpl, nn::FakeQuantizedConv2dImpl>(no_reason, /*keeps_input=*/true),
    kind<torch::nn::EmbeddingImpl, nn::FakeQuantizedEmbeddingImpl>(why_not_embedding,
                                                                   /*keeps_input=*/true),
};

// A copy of a bias that no optimizer changes.
torch::Tensor own(const torch::Tensor& bias) {
  return bias.defined() ? bias.detach().clone() : bias;
}

nn::DequantizedOptions dequantized(nn::FakeQuantizedLayer& prepared, const Integers& integers,
                                   bool floating_input) {
  const auto& how = prepared.config().weight();
  return nn::DequantizedOptions(integers.qweight, integers.scale)
      .bias(own(prepared.bias_to_add()))
      .weight_zero_point(integers.zero_point)
      .group_size(how.group_size())
      .input_fake_quant(floating_input ? nullptr : prepared.frozen_input())
      .weight_bits(how.bits())
      .dtype(prepared.weight.scalar_type())
      .rotate(prepared.config().rotate());
}

std::shared_ptr<nn::QuantizedLayer> weight_only_int4(nn::FakeQuantizedLinearImpl& prepared,
                                                     const Integers& integers,
                                                     bool floating_input) {
  const auto& how = prepared.config().weight();
  return std::make_shared<nn::WeightOnlyInt4LinearImpl>(
      nn::WeightOnlyInt4LinearOptions(integers.packed.packed, integers.scale,
                                      prepared.in_features())
          .bias(own(prepared.bias_to_add()))
          .weight_zero_point(integers.zero_point)
          .group_size(how.group_size())
          .input_fake_quant(floating_input ? nullptr : prepared.frozen_input())
          .weight_bits(how.bits())
          .dtype(prepared.weight.scalar_type())
          .rotate(prepared.config().rotate()));
}

// The layer of a weight with factors for its groups.
std::shared_ptr<nn::QuantizedLayer> convert_int4(nn::FakeQuantizedLinearImpl& prepared,
                                                 const Integers& integers) {
  const auto &how = prepared.config().weight(), &activation = *prepared.config().activation();
  auto weight = integers.packed;
  if (how.symmetric()) weight.group_zero_point.reset();
  const auto dtype = prepared.weight.scalar_type();
  if (activation.dynamic()) {
    return std::make_shared<nn::QuantizedInt4LinearImpl>(
        nn::QuantizedInt4LinearOptions(weight, *how.group_size(), prepared.in_features())
            .bias(own(prepared.bias_to_add()))
            .symmetric(activation.symmetric())
            .bits(activation.bits())
            .granularity(activation.granularity())
            .dtype(dtype)
            .rotate(prepared.config().rotate()));
  }
  const auto frozen = prepared.frozen_input();
  const auto scale = frozen->scale.to(weight.scale.scalar_type());
  return std::make_shared<nn::StaticQuantizedInt4LinearImpl>(
      nn::StaticQuantizedInt4LinearOptions(weight, *how.group_size(), prepared.in_features(), scale)
          .bias(own(prepared.bias_to_add()))
          .act_zero_point(activation.symmetric() ? torch::Tensor() : frozen->zero_point)
          .bits(activation.bits())
          .dtype(dtype)
          .rotate(prepared.config().rotate()));
}

std::shared_ptr<nn::QuantizedLayer> convert_linear(nn::FakeQuantizedLinearImpl& prepared,
                                                   const Integers& integers, bool floating_input) {
  if (integers.packed.packed.defined() && !integers.packed.group_factor.defined()) {
    return weight_only_int4(prepared, integers, floating_input);
  }
  if (floating_input || !prepared.is_integer()) {
    return std::make_shared<nn::WeightOnlyLinearImpl>(
        dequantized(prepared, integers, floating_input));
  }
  if (prepared.config().weight().group_factors()) return convert_int4(prepared, integers);
  const auto &how = prepared.config().weight(), &activation = *prepared.config().activation();
  const auto dtype = prepared.weight.scalar_type();
  if (activation.dynamic()) {
    return std::make_shared<nn::QuantizedLinearImpl>(
        nn::QuantizedLinearOptions(integers.qweight, integers.scale)
            .bias(own(prepared.bias_to_add()))
            .symmetric(activation.symmetric())
            .bits(activation.bits())
            .granularity(activation.granularity())
            .weight_bits(how.bits())
            .dtype(dtype)
            .rotate(prepared.config().rotate()));
  }
  const auto frozen = prepared.frozen_input();
  const auto scale = frozen->scale.to(integers.scale.scalar_type());
  return std::make_shared<nn::StaticQuantizedLinearImpl>(
      nn::StaticQuantizedLinearOptions(integers.qweight, integers.scale, scale)
          .bias(own(prepared.bias_to_add()))
          .act_zero_point(activation.symmetric() ? torch::Tensor() : frozen->zero_point)
          .bits(activation.bits())
          .weight_bits(how.bits())
          .dtype(dtype)
          .rotate(prepared.config().rotate()));
}

// Whether a weight has the strides of channels_last. PyTorch chooses an algorithm by them, also where
// there is one input or one position.
bool is_channels_last(const torch::Tensor& weight) {
  const auto sizes = weight.sizes();
  return weight.strides() == at::IntArrayRef(c10::get_channels_last_strides_2d(sizes)) &&
         weight.strides() != at::IntArrayRef(at::detail::defaultStrides(sizes));
}

template <typename... Modules>
struct Known {
  // Calls `use` with the module in its own class; false if it is none of these.
  template <typename Use>
  static bool visit(const std::shared_ptr<torch::nn::Module>& module, const Use& use) {
    const auto attempt = [&](const auto& typed) {
      if (typed != nullptr) use(typed);
      return typed != nullptr;
    };
    return (attempt(std::dynamic_pointer_cast<Modules>(module)) || ...);
  }
};

using KnownLayers =
    Known<nn::FakeQuantizedLinearImpl, nn::FakeQuantizedConv2dImpl, nn::FakeQuantizedEmbeddingImpl,
          nn::QuantizedLinearImpl, nn::StaticQuantizedLinearImpl, nn::QuantizedInt4LinearImpl,
          nn::StaticQuantizedInt4LinearImpl, nn::WeightOnlyLinearImpl, nn::WeightOnlyInt4LinearImpl,
          nn::FakeQuantizeInt4Impl, nn::LearnedFakeQuantizeInt4Impl, nn::QuantizedConv2dImpl,
          nn::QuantizedEmbeddingImpl, nn::FakeQuantizeImpl, nn::LearnedFakeQuantizeImpl, nn::Layer,
          torch::nn::LinearImpl, torch::nn::Conv2dImpl, torch::nn::EmbeddingImpl>;

}  // namespace

const Kind* kind_of(const torch::nn::Module& module) {
  for (const auto& kind : kinds) {
    if (kind.matches(module)) return &kind;
  }
  return nullptr;
}

std::shared_ptr<nn::QuantizedLayer> convert(nn::FakeQuantizedLayer& prepared,
                                            const Integers& integers, bool floating_input) {
  if (auto* linear = dynamic_cast<nn::FakeQuantizedLinearImpl*>(&prepared)) {
    return convert_linear(*linear, integers, floating_input);
  }
  if (auto* conv = dynamic_cast<nn::FakeQuantizedConv2dImpl*>(&prepared)) {
    auto converted = std::make_shared<nn::QuantizedConv2dImpl>(
        dequantized(prepared, integers, floating_input), conv->options);
    // Where a prepared layer cuts its weight into groups, it makes a copy.
    converted->channels_last = is_channels_last(conv->weight) && !converted->group_size();
    return converted;
  }
  const auto& embedding = dynamic_cast<const nn::FakeQuantizedEmbeddingImpl&>(prepared);
  const auto& how = prepared.config().weight();
  return std::make_shared<nn::QuantizedEmbeddingImpl>(
      nn::QuantizedEmbeddingOptions(integers.qweight, integers.scale)
          .weight_zero_point(integers.zero_point)
          .group_size(how.group_size())
          .dtype(prepared.weight.scalar_type())
          .padding_idx(embedding.options.padding_idx())
          .weight_bits(how.bits()));
}

std::string about_input(const nn::FakeQuantizedLayer& prepared) {
  const bool is_conv = dynamic_cast<const nn::FakeQuantizedConv2dImpl*>(&prepared) != nullptr;
  if (!is_conv || !prepared.config().conv_inputs().value_or(false)) return "";
  return ", input=" + prepared.config().activation()->str();
}

std::string about_rotation(const nn::QuantizedLayer& layer) {
  return layer.rotate().has_value() ? ", rotate=" + std::to_string(*layer.rotate()) : "";
}

bool is_prepared(const torch::nn::Module& module) {
  return dynamic_cast<const nn::FakeQuantizedLayer*>(&module) != nullptr;
}

bool is_converted(const torch::nn::Module& module) {
  return dynamic_cast<const nn::QuantizedLayer*>(&module) != nullptr;
}

std::string type_name(const torch::nn::Module& module) {
  auto name = module.name();
  name = name.substr(0, name.find('<'));
  name = name.substr(name.rfind(':') == std::string::npos ? 0 : name.rfind(':') + 1);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

torch::nn::AnyModule any_module(const std::shared_ptr<torch::nn::Module>& module) {
  torch::nn::AnyModule result;
  const bool is_known =
      KnownLayers::visit(module, [&](const auto& typed) { result = torch::nn::AnyModule(typed); });
  TORCH_INTERNAL_ASSERT(is_known, "not a layer: ", module->name());
  return result;
}

std::optional<torch::Tensor> call_layer(torch::nn::Module& module, const torch::Tensor& input) {
  if (auto* layer = dynamic_cast<nn::Layer*>(&module)) return layer->forward(input);
  if (auto* linear = module.as<torch::nn::LinearImpl>()) return linear->forward(input);
  if (auto* conv = module.as<torch::nn::Conv2dImpl>()) return conv->forward(input);
  if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) return embedding->forward(input);
  if (auto* sequential = module.as<torch::nn::SequentialImpl>()) return sequential->forward(input);
  return std::nullopt;
}

std::vector<torch::Tensor> weights_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> weights;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item->dim() > 1 && !item.key().ends_with("bias")) weights.push_back(*item);
  }
  return weights;
}

}  // namespace baraquant::workflow
