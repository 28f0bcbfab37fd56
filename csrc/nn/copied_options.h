// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of baraquant/workflow/layers.json: do not edit.
#pragma once

#include "api/nn/int4.h"
#include "nn/clone.h"

namespace baraquant::nn {

// The options of a copy of a QuantizedLinear.
inline QuantizedLinearOptions copied_options(const QuantizedLinearImpl& layer,
                                             const std::optional<torch::Device>& device) {
  return QuantizedLinearOptions(cloned(layer.qweight, device), cloned(layer.weight_scale, device))
      .bias(cloned(layer.bias, device))
      .smooth(cloned(layer.smooth, device))
      .symmetric(layer.symmetric())
      .bits(layer.bits())
      .granularity(layer.granularity())
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate());
}

// The options of a copy of a StaticQuantizedLinear.
inline StaticQuantizedLinearOptions copied_options(const StaticQuantizedLinearImpl& layer,
                                                   const std::optional<torch::Device>& device) {
  return StaticQuantizedLinearOptions(cloned(layer.qweight, device),
                                      cloned(layer.weight_scale, device),
                                      cloned(layer.act_scale, device))
      .bias(cloned(layer.bias, device))
      .act_zero_point(cloned(layer.act_zero_point, device))
      .smooth_scale(cloned(layer.smooth_scale, device))
      .bits(layer.bits())
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate());
}

// The options of a copy of a WeightOnlyLinear.
inline DequantizedOptions copied_options(const WeightOnlyLinearImpl& layer,
                                         const std::optional<torch::Device>& device) {
  return DequantizedOptions(cloned(layer.qweight, device), cloned(layer.weight_scale, device))
      .bias(cloned(layer.bias, device))
      .weight_zero_point(cloned(layer.weight_zero_point, device))
      .group_size(layer.group_size())
      .input_fake_quant(cloned(layer.input_fake_quant, device))
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate());
}

// The options of a copy of a WeightOnlyInt4Linear.
inline WeightOnlyInt4LinearOptions copied_options(const WeightOnlyInt4LinearImpl& layer,
                                                  const std::optional<torch::Device>& device) {
  return WeightOnlyInt4LinearOptions(cloned(layer.packed, device),
                                     cloned(layer.weight_scale, device), layer.in_features())
      .bias(cloned(layer.bias, device))
      .weight_zero_point(cloned(layer.weight_zero_point, device))
      .group_size(layer.group_size())
      .input_fake_quant(cloned(layer.input_fake_quant, device))
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate());
}

// The options of a copy of a QuantizedInt4Linear.
inline QuantizedInt4LinearOptions copied_options(const QuantizedInt4LinearImpl& layer,
                                                 const std::optional<torch::Device>& device) {
  return QuantizedInt4LinearOptions(
             cloned(layer.packed, device), cloned(layer.weight_scale, device),
             cloned(layer.group_factor, device), layer.group_size(), layer.in_features())
      .group_zero_point(cloned(layer.group_zero_point, device))
      .bias(cloned(layer.bias, device))
      .bits(layer.bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate())
      .symmetric(layer.symmetric())
      .granularity(layer.granularity());
}

// The options of a copy of a StaticQuantizedInt4Linear.
inline StaticQuantizedInt4LinearOptions copied_options(const StaticQuantizedInt4LinearImpl& layer,
                                                       const std::optional<torch::Device>& device) {
  return StaticQuantizedInt4LinearOptions(
             cloned(layer.packed, device), cloned(layer.weight_scale, device),
             cloned(layer.group_factor, device), cloned(layer.act_scale, device),
             layer.group_size(), layer.in_features())
      .group_zero_point(cloned(layer.group_zero_point, device))
      .bias(cloned(layer.bias, device))
      .act_zero_point(cloned(layer.act_zero_point, device))
      .bits(layer.bits())
      .dtype(layer.dtype())
      .rotate(layer.rotate());
}

// The options of a copy of a QuantizedEmbedding.
inline QuantizedEmbeddingOptions copied_options(const QuantizedEmbeddingImpl& layer,
                                                const std::optional<torch::Device>& device) {
  return QuantizedEmbeddingOptions(cloned(layer.qweight, device),
                                   cloned(layer.weight_scale, device))
      .weight_zero_point(cloned(layer.weight_zero_point, device))
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .group_size(layer.group_size())
      .padding_idx(layer.padding_idx());
}

// The options of a copy of a QuantizedConv2d.
inline DequantizedOptions copied_options(const QuantizedConv2dImpl& layer,
                                         const std::optional<torch::Device>& device) {
  return DequantizedOptions(cloned(layer.qweight, device), cloned(layer.weight_scale, device))
      .bias(cloned(layer.bias, device))
      .weight_zero_point(cloned(layer.weight_zero_point, device))
      .weight_bits(layer.weight_bits())
      .dtype(layer.dtype())
      .group_size(layer.group_size())
      .input_fake_quant(cloned(layer.input_fake_quant, device));
}

// The options of any of these layers; what a layer does not have is undefined or false.
struct Given {
  torch::Tensor qweight{};
  torch::Tensor weight_scale{};
  torch::Tensor bias{};
  torch::Tensor smooth{};
  bool symmetric{};
  std::optional<int64_t> bits{};
  std::string granularity{};
  std::optional<int64_t> weight_bits{};
  std::optional<torch::Dtype> dtype{};
  std::optional<int64_t> rotate{};
  torch::Tensor act_scale{};
  torch::Tensor act_zero_point{};
  torch::Tensor smooth_scale{};
  torch::Tensor weight_zero_point{};
  std::optional<int64_t> group_size{};
  std::shared_ptr<FakeQuantizeImpl> input_fake_quant{};
  torch::Tensor packed{};
  std::optional<int64_t> in_features{};
  torch::Tensor group_factor{};
  torch::Tensor group_zero_point{};
  std::optional<int64_t> padding_idx{};
};

inline Given given_of(const DequantizedOptions& options) {
  Given given;
  given.qweight = options.qweight();
  given.weight_scale = options.weight_scale();
  given.bias = options.bias();
  given.weight_zero_point = options.weight_zero_point();
  given.group_size = options.group_size();
  given.input_fake_quant = options.input_fake_quant();
  given.weight_bits = options.weight_bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  return given;
}

inline Given given_of(const QuantizedEmbeddingOptions& options) {
  Given given;
  given.qweight = options.qweight();
  given.weight_scale = options.weight_scale();
  given.weight_zero_point = options.weight_zero_point();
  given.weight_bits = options.weight_bits();
  given.dtype = options.dtype();
  given.group_size = options.group_size();
  given.padding_idx = options.padding_idx();
  return given;
}

inline Given given_of(const StaticQuantizedInt4LinearOptions& options) {
  Given given;
  given.packed = options.packed();
  given.weight_scale = options.weight_scale();
  given.group_factor = options.group_factor();
  given.act_scale = options.act_scale();
  given.group_size = options.group_size();
  given.in_features = options.in_features();
  given.group_zero_point = options.group_zero_point();
  given.bias = options.bias();
  given.act_zero_point = options.act_zero_point();
  given.bits = options.bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  return given;
}

inline Given given_of(const QuantizedInt4LinearOptions& options) {
  Given given;
  given.packed = options.packed();
  given.weight_scale = options.weight_scale();
  given.group_factor = options.group_factor();
  given.group_size = options.group_size();
  given.in_features = options.in_features();
  given.group_zero_point = options.group_zero_point();
  given.bias = options.bias();
  given.bits = options.bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  given.symmetric = options.symmetric();
  given.granularity = options.granularity();
  return given;
}

inline Given given_of(const WeightOnlyInt4LinearOptions& options) {
  Given given;
  given.packed = options.packed();
  given.weight_scale = options.weight_scale();
  given.in_features = options.in_features();
  given.bias = options.bias();
  given.weight_zero_point = options.weight_zero_point();
  given.group_size = options.group_size();
  given.input_fake_quant = options.input_fake_quant();
  given.weight_bits = options.weight_bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  return given;
}

inline Given given_of(const StaticQuantizedLinearOptions& options) {
  Given given;
  given.qweight = options.qweight();
  given.weight_scale = options.weight_scale();
  given.act_scale = options.act_scale();
  given.bias = options.bias();
  given.act_zero_point = options.act_zero_point();
  given.smooth_scale = options.smooth_scale();
  given.bits = options.bits();
  given.weight_bits = options.weight_bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  return given;
}

inline Given given_of(const QuantizedLinearOptions& options) {
  Given given;
  given.qweight = options.qweight();
  given.weight_scale = options.weight_scale();
  given.bias = options.bias();
  given.smooth = options.smooth();
  given.symmetric = options.symmetric();
  given.bits = options.bits();
  given.granularity = options.granularity();
  given.weight_bits = options.weight_bits();
  given.dtype = options.dtype();
  given.rotate = options.rotate();
  return given;
}

}  // namespace baraquant::nn
