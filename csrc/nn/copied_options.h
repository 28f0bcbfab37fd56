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

}  // namespace baraquant::nn
