// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of layers.json and baraquant/nn: do not edit.
#include <torch/nn/modules.h>

#include "api/nn/linear.h"
#include "files/forms.h"
#include "files/layers.h"

namespace baraquant::files {

constinit const Kind kWidth = {is_whole<2, 8, false>, "a whole number in [2, 8]"};
constinit const Kind kCount = {is_whole<0, 2147483647, false>, "a whole number in [0, 2147483647]"};
constinit const Kind kSize = {is_whole<1, 2147483647, false>, "a whole number in [1, 2147483647]"};
constinit const Kind kLevel = {is_whole<-16777216, 16777216, false>,
                               "a whole number in [-16777216, 16777216]"};
constinit const Kind kMaybeSize = {is_whole<1, 2147483647, true>,
                                   "a whole number in [1, 2147483647] or null"};
constinit const Kind kMaybeAxis = {is_whole<-1, -1, true>, "a whole number in [-1, -1] or null"};

const std::vector<TensorRule>& tensor_rules() {
  static const std::vector<TensorRule> all = {{"input_fake_quant.scale", "scale", "positive"},
                                              {"input_fake_quant.zero_point", "integer", "levels"},
                                              {"qweight", "int8", "weight"},
                                              {"packed", "uint8", "packed"},
                                              {"group_factor", "uint8", "factor"},
                                              {"group_zero_point", "uint8", "four_bits"},
                                              {"act_zero_point", "integer", "input"},
                                              {"zero_point", "integer", "weight"},
                                              {"scale", "scale", "positive"},
                                              {"smooth", "scale", "positive"},
                                              {"bias", "bias", "any"}};
  return all;
}

const std::vector<Form>& form_table() {
  static const std::vector<Form> all = {
      {"QuantizedLinear",
       "Linear",
       {{"symmetric", kBool},
        {"bits", kWidth},
        {"granularity", kName},
        {"weight_bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize}},
       {{"qweight", true}, {"weight_scale", true}, {"bias", false}, {"smooth", false}},
       is<nn::QuantizedLinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::QuantizedLinearImpl&>(module);
         return {{"symmetric", json_of(layer.symmetric())},
                 {"bits", json_of(layer.bits())},
                 {"granularity", json_of(layer.granularity())},
                 {"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::QuantizedLinearImpl>(
             nn::QuantizedLinearOptions(tensor_of(tensors, "qweight"),
                                        tensor_of(tensors, "weight_scale"))
                 .bias(tensor_of(tensors, "bias"))
                 .smooth(tensor_of(tensors, "smooth"))
                 .symmetric(value_of<bool>(options, "symmetric"))
                 .bits(value_of<int64_t>(options, "bits"))
                 .granularity(value_of<std::string>(options, "granularity"))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate")));
       }},
      {"StaticQuantizedLinear",
       "Linear",
       {{"bits", kWidth},
        {"weight_bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize}},
       {{"qweight", true},
        {"weight_scale", true},
        {"act_scale", true},
        {"bias", false},
        {"act_zero_point", false},
        {"smooth_scale", false}},
       is<nn::StaticQuantizedLinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::StaticQuantizedLinearImpl&>(module);
         return {{"bits", json_of(layer.bits())},
                 {"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::StaticQuantizedLinearImpl>(
             nn::StaticQuantizedLinearOptions(tensor_of(tensors, "qweight"),
                                              tensor_of(tensors, "weight_scale"),
                                              tensor_of(tensors, "act_scale"))
                 .bias(tensor_of(tensors, "bias"))
                 .act_zero_point(tensor_of(tensors, "act_zero_point"))
                 .smooth_scale(tensor_of(tensors, "smooth_scale"))
                 .bits(value_of<int64_t>(options, "bits"))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate")));
       }},
      {"WeightOnlyLinear",
       "Linear",
       {{"group_size", kMaybeSize},
        {"input_fake_quant", kRounder},
        {"weight_bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize}},
       {{"qweight", true}, {"weight_scale", true}, {"bias", false}, {"weight_zero_point", false}},
       is<nn::WeightOnlyLinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::WeightOnlyLinearImpl&>(module);
         return {{"group_size", above_zero(layer.group_size())},
                 {"input_fake_quant", json_of(layer.input_fake_quant)},
                 {"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::WeightOnlyLinearImpl>(
             nn::DequantizedOptions(tensor_of(tensors, "qweight"),
                                    tensor_of(tensors, "weight_scale"))
                 .bias(tensor_of(tensors, "bias"))
                 .weight_zero_point(tensor_of(tensors, "weight_zero_point"))
                 .group_size(value_of<std::optional<int64_t>>(options, "group_size"))
                 .input_fake_quant(rounder_of(options, tensors))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate")));
       }},
      {"WeightOnlyInt4Linear",
       "Linear",
       {{"in_features", kCount},
        {"group_size", kMaybeSize},
        {"input_fake_quant", kRounder},
        {"weight_bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize}},
       {{"packed", true}, {"weight_scale", true}, {"bias", false}, {"weight_zero_point", false}},
       is<nn::WeightOnlyInt4LinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::WeightOnlyInt4LinearImpl&>(module);
         return {{"in_features", json_of(layer.in_features())},
                 {"group_size", above_zero(layer.group_size())},
                 {"input_fake_quant", json_of(layer.input_fake_quant)},
                 {"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::WeightOnlyInt4LinearImpl>(
             nn::WeightOnlyInt4LinearOptions(tensor_of(tensors, "packed"),
                                             tensor_of(tensors, "weight_scale"),
                                             value_of<int64_t>(options, "in_features"))
                 .bias(tensor_of(tensors, "bias"))
                 .weight_zero_point(tensor_of(tensors, "weight_zero_point"))
                 .group_size(value_of<std::optional<int64_t>>(options, "group_size"))
                 .input_fake_quant(rounder_of(options, tensors))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate")));
       }},
      {"QuantizedInt4Linear",
       "Linear",
       {{"group_size", kSize},
        {"in_features", kCount},
        {"bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize},
        {"symmetric", kBool},
        {"granularity", kName}},
       {{"packed", true},
        {"weight_scale", true},
        {"group_factor", true},
        {"group_zero_point", false},
        {"bias", false}},
       is<nn::QuantizedInt4LinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::QuantizedInt4LinearImpl&>(module);
         return {{"group_size", json_of(layer.group_size())},
                 {"in_features", json_of(layer.in_features())},
                 {"bits", json_of(layer.bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())},
                 {"symmetric", json_of(layer.symmetric())},
                 {"granularity", json_of(layer.granularity())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::QuantizedInt4LinearImpl>(
             nn::QuantizedInt4LinearOptions(
                 tensor_of(tensors, "packed"), tensor_of(tensors, "weight_scale"),
                 tensor_of(tensors, "group_factor"), value_of<int64_t>(options, "group_size"),
                 value_of<int64_t>(options, "in_features"))
                 .group_zero_point(tensor_of(tensors, "group_zero_point"))
                 .bias(tensor_of(tensors, "bias"))
                 .bits(value_of<int64_t>(options, "bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate"))
                 .symmetric(value_of<bool>(options, "symmetric"))
                 .granularity(value_of<std::string>(options, "granularity")));
       }},
      {"StaticQuantizedInt4Linear",
       "Linear",
       {{"group_size", kSize},
        {"in_features", kCount},
        {"bits", kWidth},
        {"dtype", kDtype},
        {"transposed", kBool},
        {"rotate", kMaybeSize}},
       {{"packed", true},
        {"weight_scale", true},
        {"group_factor", true},
        {"act_scale", true},
        {"group_zero_point", false},
        {"bias", false},
        {"act_zero_point", false}},
       is<nn::StaticQuantizedInt4LinearImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::StaticQuantizedInt4LinearImpl&>(module);
         return {{"group_size", json_of(layer.group_size())},
                 {"in_features", json_of(layer.in_features())},
                 {"bits", json_of(layer.bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"transposed", false},
                 {"rotate", above_zero(layer.rotate())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::StaticQuantizedInt4LinearImpl>(
             nn::StaticQuantizedInt4LinearOptions(
                 tensor_of(tensors, "packed"), tensor_of(tensors, "weight_scale"),
                 tensor_of(tensors, "group_factor"), tensor_of(tensors, "act_scale"),
                 value_of<int64_t>(options, "group_size"),
                 value_of<int64_t>(options, "in_features"))
                 .group_zero_point(tensor_of(tensors, "group_zero_point"))
                 .bias(tensor_of(tensors, "bias"))
                 .act_zero_point(tensor_of(tensors, "act_zero_point"))
                 .bits(value_of<int64_t>(options, "bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .rotate(value_of<std::optional<int64_t>>(options, "rotate")));
       }},
      {"QuantizedEmbedding",
       "Embedding",
       {{"weight_bits", kWidth},
        {"dtype", kDtype},
        {"group_size", kMaybeSize},
        {"padding_idx", kIndex}},
       {{"qweight", true}, {"weight_scale", true}, {"weight_zero_point", false}},
       is<nn::QuantizedEmbeddingImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::QuantizedEmbeddingImpl&>(module);
         return {{"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"group_size", above_zero(layer.group_size())},
                 {"padding_idx", json_of(layer.padding_idx())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::QuantizedEmbeddingImpl>(
             nn::QuantizedEmbeddingOptions(tensor_of(tensors, "qweight"),
                                           tensor_of(tensors, "weight_scale"))
                 .weight_zero_point(tensor_of(tensors, "weight_zero_point"))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .group_size(value_of<std::optional<int64_t>>(options, "group_size"))
                 .padding_idx(value_of<std::optional<int64_t>>(options, "padding_idx")));
       }},
      {"QuantizedConv2d",
       "Conv2d",
       {{"weight_bits", kWidth},
        {"dtype", kDtype},
        {"group_size", kMaybeSize},
        {"input_fake_quant", kRounder},
        {"groups", kSize},
        {"padding_mode", kName},
        {"stride", kSizes},
        {"padding", kPadding},
        {"dilation", kSizes}},
       {{"qweight", true}, {"weight_scale", true}, {"bias", false}, {"weight_zero_point", false}},
       is<nn::QuantizedConv2dImpl>,
       [](const torch::nn::Module& module) -> Options {
         const auto& layer = dynamic_cast<const nn::QuantizedConv2dImpl&>(module);
         return {{"weight_bits", json_of(layer.weight_bits())},
                 {"dtype", json_of(layer.dtype())},
                 {"group_size", above_zero(layer.group_size())},
                 {"input_fake_quant", json_of(layer.input_fake_quant)},
                 {"groups", json_of(layer.conv.groups())},
                 {"padding_mode", json_of(layer.conv.padding_mode())},
                 {"stride", json_of(layer.conv.stride())},
                 {"padding", json_of(layer.conv.padding())},
                 {"dilation", json_of(layer.conv.dilation())}};
       },
       [](const Options& options, const Tensors& tensors) -> std::shared_ptr<torch::nn::Module> {
         return std::make_shared<nn::QuantizedConv2dImpl>(
             nn::DequantizedOptions(tensor_of(tensors, "qweight"),
                                    tensor_of(tensors, "weight_scale"))
                 .bias(tensor_of(tensors, "bias"))
                 .weight_zero_point(tensor_of(tensors, "weight_zero_point"))
                 .weight_bits(value_of<int64_t>(options, "weight_bits"))
                 .dtype(value_of<torch::Dtype>(options, "dtype"))
                 .group_size(value_of<std::optional<int64_t>>(options, "group_size"))
                 .input_fake_quant(rounder_of(options, tensors)),
             torch::nn::Conv2dOptions(1, 1, 1)
                 .groups(value_of<int64_t>(options, "groups"))
                 .padding_mode(
                     value_of<torch::nn::detail::conv_padding_mode_t>(options, "padding_mode"))
                 .stride(value_of<torch::ExpandingArray<2>>(options, "stride"))
                 .padding(value_of<torch::nn::detail::conv_padding_t<2>>(options, "padding"))
                 .dilation(value_of<torch::ExpandingArray<2>>(options, "dilation")));
       }},
  };
  return all;
}

const std::vector<Option>& rounder_table() {
  static const std::vector<Option> all = {
      {"mode", kMode},      {"granularity", kName}, {"group_size", kMaybeSize},
      {"axis", kMaybeAxis}, {"quant_min", kLevel},  {"quant_max", kLevel},
      {"symmetric", kBool}};
  return all;
}

Options read_rounder(const nn::FakeQuantizeImpl& layer) {
  return {{"mode", json_of(layer.options.mode())},
          {"granularity", json_of(layer.options.granularity())},
          {"group_size", above_zero(layer.options.group_size())},
          {"axis", json_of(layer.options.axis())},
          {"quant_min", json_of(layer.options.quant_min())},
          {"quant_max", json_of(layer.options.quant_max())},
          {"symmetric", json_of(layer.options.symmetric())}};
}

nn::FakeQuantizeOptions rounder_options(const Options& options) {
  return nn::FakeQuantizeOptions()
      .mode(value_of<std::string>(options, "mode"))
      .granularity(value_of<std::string>(options, "granularity"))
      .group_size(value_of<std::optional<int64_t>>(options, "group_size"))
      .axis(value_of<std::optional<int64_t>>(options, "axis"))
      .quant_min(value_of<int64_t>(options, "quant_min"))
      .quant_max(value_of<int64_t>(options, "quant_max"))
      .symmetric(value_of<bool>(options, "symmetric"));
}

Sizes sizes_of_layer(const torch::nn::Module& module) {
  if (const auto* layer = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->options.in_features())},
            {"out_features", json_of(layer->options.out_features())}};
  }
  if (const auto* layer = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    return {{"num_embeddings", json_of(layer->options.num_embeddings())},
            {"embedding_dim", json_of(layer->options.embedding_dim())},
            {"padding_idx", json_of(layer->options.padding_idx())}};
  }
  if (const auto* layer = dynamic_cast<const torch::nn::Conv2dImpl*>(&module)) {
    return {{"in_channels", json_of(layer->options.in_channels())},
            {"out_channels", json_of(layer->options.out_channels())},
            {"kernel_size", json_of(layer->options.kernel_size())},
            {"groups", json_of(layer->options.groups())},
            {"padding_mode", json_of(layer->options.padding_mode())},
            {"stride", json_of(layer->options.stride())},
            {"padding", json_of(layer->options.padding())},
            {"dilation", json_of(layer->options.dilation())}};
  }
  if (const auto* layer = dynamic_cast<const nn::QuantizedLinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::StaticQuantizedLinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::WeightOnlyLinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::WeightOnlyInt4LinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::QuantizedInt4LinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::StaticQuantizedInt4LinearImpl*>(&module)) {
    return {{"in_features", json_of(layer->in_features())},
            {"out_features", json_of(layer->out_features())}};
  }
  if (const auto* layer = dynamic_cast<const nn::QuantizedEmbeddingImpl*>(&module)) {
    return {{"num_embeddings", json_of(layer->num_embeddings())},
            {"embedding_dim", json_of(layer->embedding_dim())},
            {"padding_idx", json_of(layer->padding_idx())}};
  }
  if (const auto* layer = dynamic_cast<const nn::QuantizedConv2dImpl*>(&module)) {
    return {{"in_channels", json_of(layer->conv.in_channels())},
            {"out_channels", json_of(layer->conv.out_channels())},
            {"kernel_size", json_of(layer->conv.kernel_size())},
            {"groups", json_of(layer->conv.groups())},
            {"padding_mode", json_of(layer->conv.padding_mode())},
            {"stride", json_of(layer->conv.stride())},
            {"padding", json_of(layer->conv.padding())},
            {"dilation", json_of(layer->conv.dilation())}};
  }
  return {};
}

}  // namespace baraquant::files
