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
constexpr Kind kind(const char* name, std::string (*why_not)(const torch::nn::Module&),
                    bool keeps_input) {
  return {name, is_exactly<Float>, prepare<Float, Training>, why_not, keeps_input};
}

constexpr std::array kinds = {
    kind<torch::nn::LinearImpl, nn::FakeQuantizedLinearImpl>("Linear", no_reason,
                                                             /*keeps_input=*/false),
    kind<torch::nn::Conv2dImpl, nn::FakeQuantizedConv2dImpl>("Conv2d", no_reason,
                                                             /*keeps_input=*/true),
    kind<torch::nn::EmbeddingImpl, nn::FakeQuantizedEmbeddingImpl>("Embedding", why_not_embedding,
                                                                   /*keeps_input=*/true),
};

// A copy of a bias that no optimizer changes.
torch::Tensor own(const torch::Tensor& bias) {
  return bias.defined() ? bias.detach().clone() : bias;
}

// The options of a converted layer with all that they take from the prepared one.
template <typename Given>
Given filled(Given given, nn::FakeQuantizedLayer& prepared, const Integers& integers,
             bool floating_input) {
  const auto& config = prepared.config();
  const auto& how = config.weight();
  given.dtype(prepared.weight.scalar_type());
  if constexpr (requires { given.bias(); }) given.bias(own(prepared.bias_to_add()));
  if constexpr (requires { given.rotate(); }) given.rotate(config.rotate());
  if constexpr (requires { given.weight_bits(); }) given.weight_bits(how.bits());
  if constexpr (requires { given.weight_zero_point(); }) {
    given.weight_zero_point(integers.zero_point).group_size(how.group_size());
  }
  if constexpr (requires { given.group_zero_point(); }) {
    if (!how.symmetric()) given.group_zero_point(integers.packed.group_zero_point);
  }
  if constexpr (requires { given.input_fake_quant(); }) {
    if (!floating_input) given.input_fake_quant(prepared.frozen_input());
  }
  if constexpr (requires { given.bits(); }) given.bits(config.activation()->bits());
  if constexpr (requires { given.granularity(); }) {
    given.symmetric(config.activation()->symmetric());
    given.granularity(config.activation()->granularity());
  }
  if constexpr (requires { given.act_scale(); }) {
    const auto frozen = prepared.frozen_input();
    given.act_scale(frozen->scale.to(given.weight_scale().scalar_type()));
    if (!config.activation()->symmetric()) given.act_zero_point(frozen->zero_point);
  }
  return given;
}

std::shared_ptr<nn::QuantizedLayer> convert_linear(nn::FakeQuantizedLinearImpl& prepared,
                                                   const Integers& integers, bool floating_input) {
  const auto fill = [&](const auto& given) {
    return filled(given, prepared, integers, floating_input);
  };
  const auto& [packed, scale, factor, _] = integers.packed;
  const int64_t features = prepared.in_features();
  if (packed.defined() && !factor.defined()) {
    return std::make_shared<nn::WeightOnlyInt4LinearImpl>(
        fill(nn::WeightOnlyInt4LinearOptions(packed, integers.scale, features)));
  }
  if (floating_input || !prepared.is_integer()) {
    return std::make_shared<nn::WeightOnlyLinearImpl>(
        fill(nn::DequantizedOptions(integers.qweight, integers.scale)));
  }
  const auto& how = prepared.config().weight();
  const bool is_dynamic = prepared.config().activation()->dynamic();
  if (how.group_factors() && is_dynamic) {
    return std::make_shared<nn::QuantizedInt4LinearImpl>(
        fill(nn::QuantizedInt4LinearOptions(packed, scale, factor, *how.group_size(), features)));
  }
  if (how.group_factors()) {
    return std::make_shared<nn::StaticQuantizedInt4LinearImpl>(
        fill(nn::StaticQuantizedInt4LinearOptions(packed, scale, factor, {}, *how.group_size(),
                                                  features)));
  }
  if (is_dynamic) {
    return std::make_shared<nn::QuantizedLinearImpl>(
        fill(nn::QuantizedLinearOptions(integers.qweight, integers.scale)));
  }
  return std::make_shared<nn::StaticQuantizedLinearImpl>(
      fill(nn::StaticQuantizedLinearOptions(integers.qweight, integers.scale, {})));
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
    const nn::DequantizedOptions given(integers.qweight, integers.scale);
    auto converted = std::make_shared<nn::QuantizedConv2dImpl>(
        filled(given, prepared, integers, floating_input), conv->options);
    // Where a prepared layer cuts its weight into groups, it makes a copy.
    converted->channels_last = is_channels_last(conv->weight) && !converted->group_size();
    return converted;
  }
  const auto& embedding = dynamic_cast<const nn::FakeQuantizedEmbeddingImpl&>(prepared);
  const nn::QuantizedEmbeddingOptions given(integers.qweight, integers.scale);
  return std::make_shared<nn::QuantizedEmbeddingImpl>(
      filled(given, prepared, integers, floating_input)
          .padding_idx(embedding.options.padding_idx()));
}

std::string about(const nn::QuantizedLayer& layer, const nn::FakeQuantizedLayer& prepared,
                  bool floating_input) {
  auto text = type_name(layer);
  if (layer.rotate().has_value()) text += ", rotate=" + std::to_string(*layer.rotate());
  const bool is_conv = dynamic_cast<const nn::FakeQuantizedConv2dImpl*>(&prepared) != nullptr;
  const bool says_input = is_conv && prepared.config().conv_inputs().value_or(false);
  if (!says_input || floating_input) return text;
  return text + ", input=" + prepared.config().activation()->str();
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
