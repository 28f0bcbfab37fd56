// SPDX-License-Identifier: BSD-3-Clause
#include "files/form_makers.h"

#include <torch/nn/modules/conv.h>

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
  fail("expected padding_mode to be zeros, reflect, replicate or circular, but got ", name);
}

// The sizes of an option, of which a convolution over an image has two.
torch::ExpandingArray<2> two_of(const Options& options, const std::string& name) {
  const std::vector<int64_t> sizes = list_of(options, name);
  if (sizes.size() != 2) fail("expected ", name, " to be two numbers, but got ", sizes);
  return sizes;
}

torch::nn::detail::conv_padding_t<2> padding_of(const Options& options) {
  if (options.at("padding").is<Json::List>()) return two_of(options, "padding");
  const std::string& name = text_of(options, "padding");
  if (name == "valid") return torch::kValid;
  if (name != "same") fail("expected padding to be sizes, same or valid, but got ", name);
  for (const int64_t stride : list_of(options, "stride")) {
    if (stride != 1) fail("expected a stride of 1 beside the padding same, but got ", stride);
  }
  return torch::kSame;
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

Made make_conv(const Options& options, const Tensors& tensors, const torch::nn::Module&) {
  const nn::DequantizedOptions result = dequantized_options(options, tensors);
  const at::Tensor& weight = result.qweight();
  torch::nn::Conv2dOptions conv(1, 1, 1);
  if (weight.dim() == 4 && weight.scalar_type() == at::kChar) {  // else the constructor fails
    const int64_t groups = int_of(options, "groups"), outputs = weight.size(0);
    int64_t inputs = 0;
    if (groups <= 0 || outputs % groups != 0 ||
        __builtin_mul_overflow(weight.size(1), groups, &inputs)) {
      fail("expected groups to divide the ", outputs, " outputs, but got ", groups);
    }
    conv = torch::nn::Conv2dOptions(inputs, outputs, {weight.size(2), weight.size(3)});
    conv.groups(groups).padding_mode(padding_mode_of(text_of(options, "padding_mode")));
    conv.stride(two_of(options, "stride")).dilation(two_of(options, "dilation"));
    conv.padding(padding_of(options)).bias(result.bias().defined());
  }
  return std::make_shared<nn::QuantizedConv2dImpl>(result, conv);
}

Made make_embedding(const Options& options, const Tensors& tensors, const torch::nn::Module&) {
  nn::QuantizedEmbeddingOptions result(tensors.at("qweight"), tensors.at("weight_scale"));
  result.weight_zero_point(tensor_of(tensors, "weight_zero_point"));
  result.group_size(maybe_int_of(options, "group_size"));
  result.padding_idx(maybe_int_of(options, "padding_idx"));
  result.weight_bits(int_of(options, "weight_bits"));
  result.dtype(dtype_of(options));
  return std::make_shared<nn::QuantizedEmbeddingImpl>(result);
}

}  // namespace baraquant::files
