// SPDX-License-Identifier: BSD-3-Clause
// What a configuration means for a layer.
#pragma once

#include <torch/nn/options/conv.h>

#include "api/config.h"

namespace baraquant::nn {

// Whether the converted layer multiplies integers by integers. It does not if the terms of a sum have
// several floating scales (groups), or if the weight has a zero point.
inline bool is_integer_product(const QuantConfig& config) {
  const auto& weight = config.weight();
  const auto& activation = config.activation();
  const bool is_flat = weight.symmetric() && weight.granularity() != "per_group";
  return activation.has_value() && (is_flat || weight.group_factors()) &&
         (activation->granularity() == "per_tensor" || activation->granularity() == "per_token");
}

// The options of a Conv2d, from those that torch::nn::Conv2d stores.
inline torch::nn::Conv2dOptions like_conv2d(const torch::nn::detail::ConvNdOptions<2>& options) {
  return torch::nn::Conv2dOptions(options.in_channels(), options.out_channels(),
                                  options.kernel_size())
      .stride(options.stride())
      .padding(options.padding())
      .dilation(options.dilation())
      .groups(options.groups())
      .bias(options.bias())
      .padding_mode(options.padding_mode());
}

}  // namespace baraquant::nn
