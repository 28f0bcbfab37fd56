// SPDX-License-Identifier: BSD-3-Clause
// The models and the configurations of modules.cpp. test_modules.py reads the configurations here, as
// Python.
#pragma once

#include <baraquant/config.h>
#include <torch/nn/modules.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace {

using baraquant::PerChannel;
using baraquant::PerGroup;
using baraquant::PerTensor;
using baraquant::PerToken;
using baraquant::QuantConfig;
using baraquant::TensorConfig;

torch::nn::Sequential build(const std::string& model) {
  using namespace torch::nn;
  if (model == "mlp") return Sequential(Linear(16, 12), ReLU(), Linear(12, 8));
  if (model == "text") {
    return Sequential(Embedding(20, 16), Linear(LinearOptions(16, 16).bias(false)), Linear(16, 8));
  }
  return Sequential(
      Conv2d(Conv2dOptions(4, 8, 3).padding(1)), ReLU(),
      Conv2d(Conv2dOptions(8, 8, 3).stride(2).groups(2).padding(1).padding_mode(torch::kReflect)),
      Conv2d(Conv2dOptions(8, 8, {2, 3}).padding(torch::kSame).dilation(2).bias(false)), Flatten(),
      Linear(8 * 4 * 4, 8));
}

TensorConfig activation(bool symmetric = true) {
  return TensorConfig(8).granularity(PerTensor()).symmetric(symmetric).dynamic(false);
}

TensorConfig factors(int64_t size, bool symmetric) {
  return TensorConfig(4).granularity(PerGroup(size)).symmetric(symmetric).group_factors(true);
}

TensorConfig learned(int64_t bits, const baraquant::Granularity& granularity, bool symmetric) {
  return TensorConfig(bits).granularity(granularity).symmetric(symmetric).learned(true);
}

TensorConfig ternary(const baraquant::Granularity& granularity) {
  return TensorConfig(2).granularity(granularity).ternary(true);
}

const std::map<std::string, QuantConfig> configs = {
    {"w8a8", baraquant::W8A8()},
    {"w8a8_asymmetric", baraquant::W8A8(false)},
    {"static", baraquant::W8A8Static()},
    {"static_average", baraquant::W8A8Static("moving_average", false)},
    {"static_percentile", baraquant::W8A8Static("percentile")},
    {"static_mse", baraquant::W8A8Static("mse", false)},
    {"w8a16", baraquant::W8A16()},
    {"w4a16", baraquant::W4A16(4)},
    {"w4a16_asymmetric", baraquant::W4A16(4, false)},
    {"w4a8", baraquant::W4A8(std::nullopt)},
    {"w4a8_groups", baraquant::W4A8(4, true, "max", false)},
    {"w3a16", baraquant::W3A16(4)},
    {"w2a16", baraquant::W2A16(4)},
    {"w2a16_bfloat16", baraquant::W2A16(4, true).scale_dtype("bfloat16")},
    {"w3a8", baraquant::W3A8(4)},
    {"w2a8", baraquant::W2A8(4, false, "max")},
    {"w2a8_rotated", baraquant::W2A8(4, true).rotate(8)},
    {"w3a8_learned", baraquant::W3A8(4, false, "search", true, true)},
    {"w2a8_learned", baraquant::W2A8(4, true, "max", true, true)},
    {"factors", baraquant::W4A8(4)},
    {"factors_max", baraquant::W4A8(8, false, "max", true).backward("int8")},
    {"factors_rotated", baraquant::W4A8(4, false, "search", true).rotate(8)},
    {"factors_static", QuantConfig(factors(4, true), activation(false)).observer("moving_average")},
    {"factors_per_tensor",
     QuantConfig(factors(2, false), TensorConfig(7).granularity(PerTensor()))},
    {"factors_learned", baraquant::W4A8(4, true, "search", std::nullopt, true)},
    {"factors_learned_max", baraquant::W4A8(8, false, "max", true, true).backward("int8")},
    {"factors_learned_rotated", baraquant::W4A8(2, false, "search", true, true).rotate(8)},
    {"factors_learned_static",
     QuantConfig(factors(4, false).learned(true), learned(8, PerTensor(), false))},
    {"ternary", QuantConfig(ternary(PerTensor()), TensorConfig(8).granularity(PerToken()))},
    {"ternary_static", QuantConfig(ternary(baraquant::PerChannel()), activation(false))},
    {"ternary_groups", QuantConfig(ternary(PerGroup(4))).scale_dtype("bfloat16")},
    {"per_tensor", QuantConfig(TensorConfig(6).granularity(PerTensor()),
                               TensorConfig(7).granularity(PerTensor()))},
    {"groups_of_inputs", QuantConfig(TensorConfig(8), TensorConfig(8).granularity(PerGroup(4)))},
    {"learned", QuantConfig(learned(4, PerChannel(), true), learned(8, PerTensor(), true))},
    {"learned_asymmetric",
     QuantConfig(learned(4, PerGroup(4), false), learned(8, PerTensor(), false))},
    {"observed_weights",
     QuantConfig(TensorConfig(4).granularity(PerGroup(4)).dynamic(false), activation(false))},
    {"bfloat16_w8a8", baraquant::W8A8().scale_dtype("bfloat16")},
    {"bfloat16_search", baraquant::W4A16(4).scale_dtype("bfloat16")},
    {"float16_search", baraquant::W4A16(4, false).scale_dtype("float16")},
    {"float16_max", baraquant::W4A8(std::nullopt, false, "max").scale_dtype("float16")},
    {"bfloat16_tensor", QuantConfig(TensorConfig(6).granularity(PerTensor()).symmetric(false))
                            .scale_dtype("bfloat16")},
    {"bfloat16_learned", QuantConfig(learned(4, PerChannel(), true)).scale_dtype("bfloat16")},
    {"float16_learned", QuantConfig(learned(4, PerGroup(4), false)).scale_dtype("float16")},
    {"bfloat16_observed",
     QuantConfig(TensorConfig(4).granularity(PerGroup(4)).symmetric(false).dynamic(false))
         .scale_dtype("bfloat16")},
    {"float16_observed", QuantConfig(TensorConfig(8).dynamic(false)).scale_dtype("float16")},
    {"conv_inputs",
     baraquant::W8A8Static("min_max", false).scale_dtype("float16").conv_inputs(true)},
    {"conv_inputs_dynamic",
     QuantConfig(TensorConfig(8), TensorConfig(8).granularity(PerTensor()).symmetric(false))
         .conv_inputs(true)},
    {"conv_inputs_learned",
     QuantConfig(TensorConfig(8), learned(8, PerTensor(), false)).conv_inputs(true)},
    {"conv_inputs_off", baraquant::W8A8Static().conv_inputs(false)},
    {"int8_backward", baraquant::W8A8().backward("int8")},
    {"int8_backward_asymmetric", baraquant::W8A8(false).backward("int8")},
    {"int8_input_backward", baraquant::W4A8(std::nullopt).backward("int8_input")},
    {"rotated", baraquant::W8A8().rotate(8)},
    {"rotated_asymmetric", baraquant::W8A8(false).rotate(256)},
    {"rotated_static", baraquant::W8A8Static("moving_average", false).rotate(4)},
    {"rotated_mse", baraquant::W8A8Static("mse").rotate(64)},
    {"rotated_groups", baraquant::W4A16(4, false).rotate(8)},
    {"rotated_search", baraquant::W4A8(std::nullopt).rotate(8)},
    {"rotated_groups_of_inputs",
     QuantConfig(TensorConfig(8), TensorConfig(8).granularity(PerGroup(4))).rotate(16)},
    {"rotated_per_tensor",
     QuantConfig(TensorConfig(6).granularity(PerTensor()), TensorConfig(7).granularity(PerTensor()))
         .rotate(16)},
    {"rotated_learned",
     QuantConfig(learned(4, PerGroup(4), false), learned(8, PerTensor(), false)).rotate(8)},
    {"rotated_observed",
     QuantConfig(TensorConfig(4).granularity(PerGroup(4)).dynamic(false), activation(false))
         .rotate(8)},
    {"rotated_backward", baraquant::W8A8().backward("int8").rotate(4)},
    {"master", baraquant::W8A8().master("bfloat16")},
    {"master_static", baraquant::W8A8Static("min_max", false).master("float16").rotate(4)},
    {"master_search", baraquant::W4A16(4, false).master("bfloat16")},
    {"master_factors", baraquant::W4A8(4).master("bfloat16")},
    {"master_learned",
     QuantConfig(learned(4, PerGroup(4), false), learned(8, PerTensor(), false)).master("float16")},
    {"master_factors_learned", baraquant::W4A8(4, false, "max", true, true).master("bfloat16")},
};

}  // namespace
