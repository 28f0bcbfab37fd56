// SPDX-License-Identifier: BSD-3-Clause
#include "files/layers.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "api/nn/inference.h"
#include "api/nn/int4.h"
#include "files/options.h"
#include "nn/configs.h"
#include "workflow/layers.h"

namespace baraquant::files {
namespace {

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

Sizes conv_sizes(const torch::nn::Conv2dOptions& conv) {
  return {{"in_channels", conv.in_channels()},
          {"out_channels", conv.out_channels()},
          {"kernel_size", json_of(conv.kernel_size())},
          {"groups", conv.groups()},
          {"padding_mode", json_of(conv.padding_mode())},
          {"stride", json_of(conv.stride())},
          {"padding", json_of(conv.padding())},
          {"dilation", json_of(conv.dilation())}};
}

Sizes embedding_sizes(int64_t rows, int64_t columns, std::optional<int64_t> padding) {
  return {{"num_embeddings", rows}, {"embedding_dim", columns}, {"padding_idx", json_of(padding)}};
}

Sizes linear_sizes(int64_t in_features, int64_t out_features) {
  return {{"in_features", in_features}, {"out_features", out_features}};
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  append_state(module, "", state);
  return state;
}

const char* layer_of(const torch::nn::Module& module) {
  const auto* kind = workflow::kind_of(module);
  return kind == nullptr ? nullptr : kind->name;  // a subclass, for example
}

Sizes sizes_of_layer(const torch::nn::Module& module) {
  if (const auto* linear = as<torch::nn::LinearImpl>(module)) {
    return linear_sizes(linear->options.in_features(), linear->options.out_features());
  }
  if (const auto* conv = as<torch::nn::Conv2dImpl>(module)) {
    return conv_sizes(nn::like_conv2d(conv->options));
  }
  if (const auto* embedding = as<torch::nn::EmbeddingImpl>(module)) {
    const auto& options = embedding->options;
    return embedding_sizes(options.num_embeddings(), options.embedding_dim(),
                           options.padding_idx());
  }
  if (const auto* conv = as<nn::QuantizedConv2dImpl>(module)) return conv_sizes(conv->conv);
  if (const auto* embedding = as<nn::QuantizedEmbeddingImpl>(module)) {
    return embedding_sizes(embedding->qweight.size(0), embedding->qweight.size(1),
                           embedding->padding_idx());
  }
  if (const auto* linear = as<nn::QuantizedLayer>(module)) {
    const auto sizes = linear->weight_sizes();
    return linear_sizes(sizes[1], sizes[0]);
  }
  return {};
}

at::Tensor tensor_of(const torch::nn::Module& module, const std::string& name) {
  for (const auto& [own, tensor] : state_of(module)) {
    if (own == name) return tensor;
  }
  return {};
}

}  // namespace baraquant::files
