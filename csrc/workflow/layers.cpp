// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/layers.h"

#include <ATen/TensorUtils.h>
#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <type_traits>
#include <typeinfo>

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

template <typename Float, typename Training>
constexpr Kind kind(const char* name, bool keeps_input) {
  return {name, is_exactly<Float>, prepare<Float, Training>, keeps_input};
}

constexpr std::array kinds = {
    kind<torch::nn::LinearImpl, nn::FakeQuantizedLinearImpl>("Linear", /*keeps_input=*/false),
    kind<torch::nn::Conv2dImpl, nn::FakeQuantizedConv2dImpl>("Conv2d", /*keeps_input=*/true),
    kind<torch::nn::EmbeddingImpl, nn::FakeQuantizedEmbeddingImpl>("Embedding",
                                                                   /*keeps_input=*/true),
};

// A linear layer that multiplies integers.
std::shared_ptr<nn::QuantizedLayer> integer_linear(const nn::FakeQuantizedLayer& prepared,
                                                   nn::Given given) {
  const auto& activation = *prepared.config().activation();
  const bool has_factors = given.group_factor.defined();
  given.bits = activation.bits();
  if (activation.dynamic()) {
    given.symmetric = activation.symmetric();
    given.granularity = activation.granularity();
    if (has_factors) return std::make_shared<nn::QuantizedInt4LinearImpl>(given);
    return std::make_shared<nn::QuantizedLinearImpl>(given);
  }
  const auto frozen = prepared.frozen_input();
  given.act_scale = frozen->scale.to(given.weight_scale.scalar_type());
  if (!activation.symmetric()) given.act_zero_point = frozen->zero_point;
  if (has_factors) return std::make_shared<nn::StaticQuantizedInt4LinearImpl>(given);
  return std::make_shared<nn::StaticQuantizedLinearImpl>(given);
}

// Whether a weight has the strides of channels_last. PyTorch chooses an algorithm by them, also where
// there is one input or one position.
bool is_channels_last(const torch::Tensor& weight) {
  const auto sizes = weight.sizes();
  return weight.strides() == at::IntArrayRef(c10::get_channels_last_strides_2d(sizes)) &&
         weight.strides() != at::IntArrayRef(at::detail::defaultStrides(sizes));
}

// A module in its own class, which is one of these.
template <typename... Modules>
torch::nn::AnyModule any_of(const std::shared_ptr<torch::nn::Module>& module) {
  torch::nn::AnyModule result;
  const auto is = [&](const auto& typed) {
    if (typed != nullptr) result = torch::nn::AnyModule(typed);
    return typed != nullptr;
  };
  const bool is_known = (is(std::dynamic_pointer_cast<Modules>(module)) || ...);
  TORCH_INTERNAL_ASSERT(is_known, "not a layer: ", module->name());
  return result;
}

}  // namespace

const Kind* kind_of(const torch::nn::Module& module) {
  for (const auto& kind : kinds) {
    if (kind.matches(module)) return &kind;
  }
  return nullptr;
}

std::string why_float(const torch::nn::Module& module) {
  const auto* embedding = module.as<torch::nn::EmbeddingImpl>();
  const bool rewrites = embedding != nullptr && embedding->options.max_norm().has_value();
  return rewrites ? "its max_norm rewrites the weight" : "";
}

std::shared_ptr<nn::QuantizedLayer> convert(nn::FakeQuantizedLayer& prepared, nn::Given given,
                                            bool floating_input) {
  const auto& how = prepared.config().weight();
  const auto bias = prepared.bias_to_add();
  if (bias.defined()) given.bias = bias.detach().clone();  // which no optimizer changes
  given.dtype = prepared.weight.scalar_type();
  given.weight_bits = how.bits();
  given.group_size = how.group_size();
  given.rotate = prepared.config().rotate();
  const auto* linear = dynamic_cast<nn::FakeQuantizedLinearImpl*>(&prepared);
  if (given.packed.defined()) given.in_features = linear->in_features();
  if (linear != nullptr && linear->is_integer() && !floating_input) {
    return integer_linear(prepared, std::move(given));
  }
  if (!floating_input) given.input_fake_quant = prepared.frozen_input();
  if (given.packed.defined()) return std::make_shared<nn::WeightOnlyInt4LinearImpl>(given);
  if (linear != nullptr) return std::make_shared<nn::WeightOnlyLinearImpl>(given);
  if (auto* conv = dynamic_cast<nn::FakeQuantizedConv2dImpl*>(&prepared)) {
    auto converted = std::make_shared<nn::QuantizedConv2dImpl>(given, conv->options);
    // Where a prepared layer cuts its weight into groups, it makes a copy.
    converted->channels_last = is_channels_last(conv->weight) && !converted->group_size();
    return converted;
  }
  const auto& embedding = dynamic_cast<const nn::FakeQuantizedEmbeddingImpl&>(prepared);
  given.padding_idx = embedding.options.padding_idx();
  return std::make_shared<nn::QuantizedEmbeddingImpl>(given);
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
  return any_of<
      nn::FakeQuantizedLinearImpl, nn::FakeQuantizedConv2dImpl, nn::FakeQuantizedEmbeddingImpl,
      nn::QuantizedLinearImpl, nn::StaticQuantizedLinearImpl, nn::QuantizedInt4LinearImpl,
      nn::StaticQuantizedInt4LinearImpl, nn::WeightOnlyLinearImpl, nn::WeightOnlyInt4LinearImpl,
      nn::FakeQuantizeInt4Impl, nn::LearnedFakeQuantizeInt4Impl, nn::QuantizedConv2dImpl,
      nn::QuantizedEmbeddingImpl, nn::FakeQuantizeImpl, nn::LearnedFakeQuantizeImpl, nn::Layer,
      torch::nn::LinearImpl, torch::nn::Conv2dImpl, torch::nn::EmbeddingImpl>(module);
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
