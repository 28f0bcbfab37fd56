// SPDX-License-Identifier: BSD-3-Clause
#include "files/layers.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <variant>

#include "api/nn/inference.h"
#include "api/nn/int4.h"
#include "nn/configs.h"
#include "nn/product.h"
#include "workflow/layers.h"

namespace baraquant::files {
namespace {

using Sizes = std::vector<std::pair<std::string, std::string>>;

template <typename T>
const T* as(const torch::nn::Module& module) {
  return dynamic_cast<const T*>(&module);
}

void append_state(const torch::nn::Module& module, const std::string& prefix,
                  std::vector<std::pair<std::string, at::Tensor>>& state) {
  for (const auto& item : module.named_parameters(false)) {
    state.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(false)) {
    state.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_children()) {
    append_state(*item.value(), prefix + item.key() + ".", state);
  }
}

std::string text_of(c10::IntArrayRef sizes) { return c10::str(sizes); }

std::string padding_text(const torch::nn::Conv2dOptions& conv) {
  if (std::holds_alternative<torch::enumtype::kSame>(conv.padding())) return "same";
  if (std::holds_alternative<torch::enumtype::kValid>(conv.padding())) return "valid";
  return text_of(std::get<torch::ExpandingArray<2>>(conv.padding()));
}

Sizes conv_sizes(const torch::nn::Conv2dOptions& conv, int64_t in_channels, int64_t out_channels,
                 c10::IntArrayRef kernel) {
  return {{"in_channels", std::to_string(in_channels)},
          {"out_channels", std::to_string(out_channels)},
          {"kernel_size", text_of(kernel)},
          {"groups", std::to_string(conv.groups())},
          {"padding_mode", nn::padding_mode_of(conv)},
          {"stride", text_of(conv.stride())},
          {"padding", padding_text(conv)},
          {"dilation", text_of(conv.dilation())}};
}

Sizes embedding_sizes(int64_t rows, int64_t columns, std::optional<int64_t> padding) {
  return {{"num_embeddings", std::to_string(rows)},
          {"embedding_dim", std::to_string(columns)},
          {"padding_idx", padding ? std::to_string(*padding) : "none"}};
}

Sizes linear_sizes(int64_t in_features, int64_t out_features) {
  return {{"in_features", std::to_string(in_features)},
          {"out_features", std::to_string(out_features)}};
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  append_state(module, "", state);
  return state;
}

const char* layer_of(const torch::nn::Module& module) {
  if (workflow::kind_of(module) == nullptr) return nullptr;  // a subclass, for example
  if (as<torch::nn::LinearImpl>(module) != nullptr) return "Linear";
  if (as<torch::nn::Conv2dImpl>(module) != nullptr) return "Conv2d";
  return as<torch::nn::EmbeddingImpl>(module) != nullptr ? "Embedding" : nullptr;
}

Sizes sizes_of_layer(const torch::nn::Module& module) {
  if (const auto* linear = as<torch::nn::LinearImpl>(module)) {
    return linear_sizes(linear->options.in_features(), linear->options.out_features());
  }
  if (const auto* conv = as<torch::nn::Conv2dImpl>(module)) {
    const auto options = nn::like_conv2d(conv->options);
    return conv_sizes(options, options.in_channels(), options.out_channels(),
                      options.kernel_size());
  }
  if (const auto* embedding = as<torch::nn::EmbeddingImpl>(module)) {
    const auto& options = embedding->options;
    return embedding_sizes(options.num_embeddings(), options.embedding_dim(),
                           options.padding_idx());
  }
  if (const auto* conv = as<nn::QuantizedConv2dImpl>(module)) {
    const at::Tensor& weight = conv->qweight;
    return conv_sizes(conv->conv, weight.size(1) * conv->conv.groups(), weight.size(0),
                      weight.sizes().slice(2));
  }
  if (const auto* embedding = as<nn::QuantizedEmbeddingImpl>(module)) {
    return embedding_sizes(embedding->qweight.size(0), embedding->qweight.size(1),
                           embedding->padding_idx());
  }
  if (const auto* linear = as<nn::Int4Linear>(module)) {
    return linear_sizes(linear->in_features(), linear->out_features());
  }
  if (const auto* linear = as<nn::WeightOnlyInt4LinearImpl>(module)) {
    return linear_sizes(linear->in_features(), linear->out_features());
  }
  if (const auto* linear = as<nn::QuantizedLayer>(module)) {
    return linear_sizes(linear->qweight.size(1), linear->qweight.size(0));
  }
  return {};
}

at::Tensor weight_of(const torch::nn::Module& module) {
  if (const auto* linear = as<torch::nn::LinearImpl>(module)) return linear->weight;
  if (const auto* conv = as<torch::nn::Conv2dImpl>(module)) return conv->weight;
  if (const auto* embedding = as<torch::nn::EmbeddingImpl>(module)) return embedding->weight;
  if (const auto* linear = as<nn::Int4Linear>(module)) return linear->packed;
  if (const auto* linear = as<nn::WeightOnlyInt4LinearImpl>(module)) return linear->packed;
  const auto* converted = as<nn::QuantizedLayer>(module);
  return converted != nullptr ? converted->qweight : at::Tensor();
}

at::Tensor bias_of(const torch::nn::Module& module) {
  if (const auto* linear = as<torch::nn::LinearImpl>(module)) return linear->bias;
  if (const auto* conv = as<torch::nn::Conv2dImpl>(module)) return conv->bias;
  const auto* converted = as<nn::QuantizedLayer>(module);
  return converted != nullptr ? converted->bias : at::Tensor();
}

}  // namespace baraquant::files
