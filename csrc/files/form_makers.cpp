// SPDX-License-Identifier: BSD-3-Clause
#include "files/form_makers.h"

#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <variant>

#include "api/nn/inference.h"
#include "api/nn/int4.h"
#include "files/layers.h"
#include "files/text.h"

namespace baraquant::files {
namespace {

constexpr const char* kRounder = "input_fake_quant";

at::Tensor tensor_of(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

// What all layers have.
Options read_common(const nn::QuantizedLayer& layer) {
  return {{"weight_bits", layer.weight_bits()}, {"dtype", json_of(layer.dtype())}};
}

template <typename T>
const T& cast(const torch::nn::Module& module) {
  return dynamic_cast<const T&>(module);
}

// An absent group size is null, also where it is 0.
Json group_size_of(std::optional<int64_t> size) { return size == 0 ? Json() : json_of(size); }

Json read_rounder(const nn::FakeQuantizeImpl* rounder) {
  if (rounder == nullptr) return {};
  const nn::FakeQuantizeOptions& options = rounder->options;
  const std::string& granularity = options.granularity();
  const bool has_axis = granularity == "per_channel" || granularity == "per_group";
  return Json::Object{
      {"mode", options.mode()},
      {"granularity", granularity},
      {"group_size", group_size_of(options.group_size())},
      {"axis", has_axis ? Json(options.axis().value_or(-1)) : Json()},
      {"quant_min", options.quant_min()},
      {"quant_max", options.quant_max()},
      {"symmetric", options.symmetric()},
  };
}

// Sets what the layers of floating arithmetic have in common.
template <typename LayerOptions>
void set_dequantized(LayerOptions& result, const Options& options, const Tensors& tensors) {
  result.bias(tensor_of(tensors, "bias"));
  result.weight_zero_point(tensor_of(tensors, "weight_zero_point"));
  result.group_size(maybe_int_of(options, "group_size"));
  result.weight_bits(int_of(options, "weight_bits")).dtype(dtype_of(options));
  const Json& rounder = options.at(kRounder);
  if (!rounder.is_null()) result.input_fake_quant(make_rounder(rounder, tensors));
}

nn::DequantizedOptions dequantized_options(const Options& options, const Tensors& tensors) {
  nn::DequantizedOptions result(tensors.at("qweight"), tensors.at("weight_scale"));
  set_dequantized(result, options, tensors);
  return result;
}

torch::nn::detail::conv_padding_mode_t padding_mode_of(const std::string& name) {
  if (name == "zeros") return torch::kZeros;
  if (name == "reflect") return torch::kReflect;
  if (name == "replicate") return torch::kReplicate;
  if (name == "circular") return torch::kCircular;
  fail(
      "padding_mode must be one of {'zeros', 'reflect', 'replicate', 'circular'}, but got "
      "padding_mode='",
      name, "'");
}

// The checks of PyTorch's convolutions in Python.
void check_conv(const Options& options, int64_t out_channels) {
  const int64_t groups = int_of(options, "groups");
  if (groups <= 0) fail("groups must be a positive integer");
  if (out_channels % groups != 0) fail("out_channels must be divisible by groups");
  const Json& padding = options.at("padding");
  if (padding.is<std::string>()) {
    const std::string& name = padding.get<std::string>();
    if (name != "same" && name != "valid") {
      fail("Invalid padding string ", repr(name), ", should be one of {'same', 'valid'}");
    }
    const auto stride = list_of(options, "stride");
    const bool is_strided =
        std::any_of(stride.begin(), stride.end(), [](int64_t size) { return size != 1; });
    if (name == "same" && is_strided) {
      fail("padding='same' is not supported for strided convolutions");
    }
  }
  padding_mode_of(text_of(options, "padding_mode"));
}

// Check that a tuple has a size for each of two dimensions; otherwise it is not the model's.
void check_two(const Options& options, const std::string& name, const torch::nn::Module& like) {
  if (!options.at(name).is<Json::List>()) return;
  const auto wanted = list_of(options, name);
  if (wanted.size() == 2) return;
  for (const auto& [size, text] : sizes_of_layer(like)) {
    if (size != name) continue;
    fail("expected ", name, " to be ", tuple_repr(wanted), ", as in the file, but the model has ",
         text);
  }
}

Options read_int4(const nn::Int4Linear& layer) {
  return {{"group_size", layer.group_size()},
          {"in_features", layer.in_features()},
          {"bits", layer.bits()},
          {"dtype", json_of(layer.dtype())},
          {"transposed", false},
          {"rotate", json_of(layer.rotate())}};
}

nn::PackedInt4 packed_weight(const Tensors& tensors) {
  return {tensors.at("packed"), tensors.at("weight_scale"), tensors.at("group_factor"),
          tensor_of(tensors, "group_zero_point")};
}

}  // namespace

std::shared_ptr<nn::FakeQuantizeImpl> make_rounder(const Json& options, const Tensors& tensors) {
  nn::FakeQuantizeOptions result;
  result.mode(options.at("mode").get<std::string>());
  result.granularity(options.at("granularity").get<std::string>());
  result.group_size(options.at("group_size").integer()).axis(options.at("axis").integer());
  result.quant_min(*options.at("quant_min").integer());
  result.quant_max(*options.at("quant_max").integer());
  result.symmetric(options.at("symmetric").get<bool>());
  const at::Tensor scale = tensor_of(tensors, "input_fake_quant.scale");
  if (scale.defined()) result.scale(scale);
  const at::Tensor zero_point = tensor_of(tensors, "input_fake_quant.zero_point");
  if (zero_point.defined()) result.zero_point(zero_point);
  return std::make_shared<nn::FakeQuantizeImpl>(result);
}

Options read_quantized_linear(const torch::nn::Module& module) {
  const auto& layer = cast<nn::QuantizedLinearImpl>(module);
  Options options = read_common(layer);
  options["symmetric"] = layer.symmetric();
  options["bits"] = layer.bits();
  options["granularity"] = layer.granularity();
  options["transposed"] = false;
  options["rotate"] = json_of(layer.rotate());
  return options;
}

Options read_static_linear(const torch::nn::Module& module) {
  const auto& layer = cast<nn::StaticQuantizedLinearImpl>(module);
  Options options = read_common(layer);
  options["bits"] = layer.bits();
  options["transposed"] = false;
  options["rotate"] = json_of(layer.rotate());
  return options;
}

namespace {

// What both layers of floating arithmetic have.
Options read_floating_linear(const nn::DequantizedLayer& layer) {
  Options options = read_common(layer);
  options["group_size"] = group_size_of(layer.group_size());
  options[kRounder] = read_rounder(layer.input_fake_quant.get());
  options["transposed"] = false;
  options["rotate"] = json_of(layer.rotate());
  return options;
}

}  // namespace

Options read_weight_only_linear(const torch::nn::Module& module) {
  return read_floating_linear(cast<nn::WeightOnlyLinearImpl>(module));
}

Options read_weight_only_int4_linear(const torch::nn::Module& module) {
  const auto& layer = cast<nn::WeightOnlyInt4LinearImpl>(module);
  Options options = read_floating_linear(layer);
  options["in_features"] = layer.in_features();
  return options;
}

Options read_int4_linear(const torch::nn::Module& module) {
  const auto& layer = cast<nn::QuantizedInt4LinearImpl>(module);
  Options options = read_int4(layer);
  options["symmetric"] = layer.symmetric();
  options["granularity"] = layer.granularity();
  return options;
}

Options read_static_int4_linear(const torch::nn::Module& module) {
  return read_int4(cast<nn::StaticQuantizedInt4LinearImpl>(module));
}

Options read_conv(const torch::nn::Module& module) {
  const auto& layer = cast<nn::QuantizedConv2dImpl>(module);
  Options options = read_common(layer);
  options["group_size"] = group_size_of(layer.group_size());
  options[kRounder] = read_rounder(layer.input_fake_quant.get());
  options["groups"] = layer.conv.groups();
  options["stride"] = json_of(c10::IntArrayRef(layer.conv.stride()));
  options["dilation"] = json_of(c10::IntArrayRef(layer.conv.dilation()));
  for (const auto& [name, text] : sizes_of_layer(layer)) {
    if (name == "padding_mode" || name == "padding") options[name] = text;
  }
  if (const auto* sizes = std::get_if<torch::ExpandingArray<2>>(&layer.conv.padding())) {
    options["padding"] = json_of(c10::IntArrayRef(*sizes));
  }
  return options;
}

Options read_embedding(const torch::nn::Module& module) {
  const auto& layer = cast<nn::QuantizedEmbeddingImpl>(module);
  Options options = read_common(layer);
  options["group_size"] = group_size_of(layer.group_size());
  options["padding_idx"] = json_of(layer.padding_idx());
  return options;
}

Made make_quantized_linear(const Options& options, const Tensors& tensors,
                           const torch::nn::Module&) {
  nn::QuantizedLinearOptions result(tensors.at("qweight"), tensors.at("weight_scale"));
  result.bias(tensor_of(tensors, "bias")).smooth(tensor_of(tensors, "smooth"));
  result.symmetric(bool_of(options, "symmetric")).bits(int_of(options, "bits"));
  result.granularity(text_of(options, "granularity"));
  result.weight_bits(int_of(options, "weight_bits")).dtype(dtype_of(options));
  result.rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::QuantizedLinearImpl>(result);
}

Made make_static_linear(const Options& options, const Tensors& tensors, const torch::nn::Module&) {
  nn::StaticQuantizedLinearOptions result(tensors.at("qweight"), tensors.at("weight_scale"),
                                          tensors.at("act_scale"));
  result.bias(tensor_of(tensors, "bias")).bits(int_of(options, "bits"));
  result.act_zero_point(tensor_of(tensors, "act_zero_point"));
  result.smooth_scale(tensor_of(tensors, "smooth_scale"));
  result.weight_bits(int_of(options, "weight_bits")).dtype(dtype_of(options));
  result.rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::StaticQuantizedLinearImpl>(result);
}

Made make_weight_only_linear(const Options& options, const Tensors& tensors,
                             const torch::nn::Module&) {
  auto result = dequantized_options(options, tensors);
  result.rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::WeightOnlyLinearImpl>(result);
}

Made make_weight_only_int4_linear(const Options& options, const Tensors& tensors,
                                  const torch::nn::Module&) {
  nn::WeightOnlyInt4LinearOptions result(tensors.at("packed"), tensors.at("weight_scale"),
                                         int_of(options, "in_features"));
  set_dequantized(result, options, tensors);
  result.rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::WeightOnlyInt4LinearImpl>(result);
}

Made make_int4_linear(const Options& options, const Tensors& tensors, const torch::nn::Module&) {
  nn::QuantizedInt4LinearOptions result(packed_weight(tensors), int_of(options, "group_size"),
                                        int_of(options, "in_features"));
  result.bias(tensor_of(tensors, "bias")).bits(int_of(options, "bits"));
  result.symmetric(bool_of(options, "symmetric")).granularity(text_of(options, "granularity"));
  result.dtype(dtype_of(options)).rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::QuantizedInt4LinearImpl>(result);
}

Made make_static_int4_linear(const Options& options, const Tensors& tensors,
                             const torch::nn::Module&) {
  nn::StaticQuantizedInt4LinearOptions result(packed_weight(tensors), int_of(options, "group_size"),
                                              int_of(options, "in_features"),
                                              tensors.at("act_scale"));
  result.bias(tensor_of(tensors, "bias")).bits(int_of(options, "bits"));
  result.act_zero_point(tensor_of(tensors, "act_zero_point"));
  result.dtype(dtype_of(options)).rotate(maybe_int_of(options, "rotate"));
  return std::make_shared<nn::StaticQuantizedInt4LinearImpl>(result);
}

Made make_conv(const Options& options, const Tensors& tensors, const torch::nn::Module& like) {
  const nn::DequantizedOptions result = dequantized_options(options, tensors);
  const at::Tensor& weight = result.qweight();
  torch::nn::Conv2dOptions conv(1, 1, 1);
  if (weight.dim() == 4 && weight.scalar_type() == at::kChar) {  // else the constructor fails
    check_conv(options, weight.size(0));
    for (const char* name : {"stride", "padding", "dilation"}) check_two(options, name, like);
    const int64_t groups = int_of(options, "groups");
    int64_t in_channels = 0;
    if (__builtin_mul_overflow(weight.size(1), groups, &in_channels)) {
      fail("expected groups to be less, but got ", groups);
    }
    conv = torch::nn::Conv2dOptions(in_channels, weight.size(0), {weight.size(2), weight.size(3)});
    conv.groups(groups).padding_mode(padding_mode_of(text_of(options, "padding_mode")));
    conv.stride(list_of(options, "stride")).dilation(list_of(options, "dilation"));
    if (options.at("padding").is<Json::List>()) {
      conv.padding(torch::ExpandingArray<2>(list_of(options, "padding")));
    } else if (text_of(options, "padding") == "same") {
      conv.padding(torch::kSame);
    } else {
      conv.padding(torch::kValid);
    }
    conv.bias(result.bias().defined());
  }
  return std::make_shared<nn::QuantizedConv2dImpl>(result, conv);
}

Made make_embedding(const Options& options, const Tensors& tensors, const torch::nn::Module&) {
  nn::QuantizedEmbeddingOptions result(tensors.at("qweight"), tensors.at("weight_scale"));
  result.weight_zero_point(tensor_of(tensors, "weight_zero_point"));
  result.group_size(maybe_int_of(options, "group_size"));
  result.padding_idx(maybe_int_of(options, "padding_idx"));
  result.weight_bits(int_of(options, "weight_bits"));
  result.dtype(dtype_of(options).value_or(at::kFloat));
  return std::make_shared<nn::QuantizedEmbeddingImpl>(result);
}

}  // namespace baraquant::files
