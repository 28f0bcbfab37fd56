// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of layers.json and baraquant/nn: do not edit.
#pragma once

#include "api/nn/layer_options.h"

namespace baraquant::nn {

// The options of any of these layers; what a layer does not have is undefined or false.
struct Given {
  torch::Tensor qweight{}, weight_scale{}, bias{}, smooth{}, act_scale{}, act_zero_point{},
      smooth_scale{}, weight_zero_point{}, packed{}, group_factor{}, group_zero_point{};
  bool symmetric{};
  std::optional<int64_t> bits{}, weight_bits{}, rotate{}, group_size{}, in_features{},
      padding_idx{};
  std::string granularity{};
  std::optional<torch::Dtype> dtype{};
  std::shared_ptr<FakeQuantizeImpl> input_fake_quant{};
};

// Calls X with the name of each.
// clang-format off
#define BARAQUANT_ARGUMENTS(X) \
  X(qweight) X(weight_scale) X(bias) X(smooth) X(symmetric) X(bits) X(granularity) \
  X(weight_bits) X(dtype) X(rotate) X(act_scale) X(act_zero_point) X(smooth_scale) \
  X(weight_zero_point) X(group_size) X(input_fake_quant) X(packed) X(in_features) \
  X(group_factor) X(group_zero_point) X(padding_idx)
// clang-format on

}  // namespace baraquant::nn
