// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of baraquant/workflow/layers.json: do not edit.
/// @file
/// The options of the layers for inference.
#pragma once

#include <torch/arg.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "quantizers.h"

namespace baraquant::nn {

/// Options of QuantizedLinear.
struct BARAQUANT_API QuantizedLinearOptions {
  /// What has no default.
  QuantizedLinearOptions(torch::Tensor qweight, torch::Tensor weight_scale)
      : qweight_(std::move(qweight)), weight_scale_(std::move(weight_scale)) {}
  /// int8, the output channels first.
  TORCH_ARG(torch::Tensor, qweight);
  /// float32 (float64 for float64 inputs) `[out_features]`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// `[in_features]`: the input is first divided by it (SmoothQuant).
  TORCH_ARG(torch::Tensor, smooth);
  /// true for no zero point of the input.
  TORCH_ARG(bool, symmetric) = true;
  /// The width of the input's integers, 2 to 8.
  TORCH_ARG(int64_t, bits) = 8;
  /// "per_token", or "per_tensor": one scale for the whole input.
  TORCH_ARG(std::string, granularity) = "per_token";
  /// The width of the weight's integers, 2 to 8.
  TORCH_ARG(int64_t, weight_bits) = 8;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
};

/// Options of StaticQuantizedLinear.
struct BARAQUANT_API StaticQuantizedLinearOptions {
  /// What has no default.
  StaticQuantizedLinearOptions(torch::Tensor qweight, torch::Tensor weight_scale,
                               torch::Tensor act_scale)
      : qweight_(std::move(qweight)),
        weight_scale_(std::move(weight_scale)),
        act_scale_(std::move(act_scale)) {}
  /// int8, the output channels first.
  TORCH_ARG(torch::Tensor, qweight);
  /// float32 (float64 for float64 inputs) `[out_features]`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// `[]` or `[1]`, of the dtype of `weight_scale`: the scale of the input.
  TORCH_ARG(torch::Tensor, act_scale);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// Integer `[]` or `[1]`; undefined stands for 0.
  TORCH_ARG(torch::Tensor, act_zero_point);
  /// `[in_features]`: the scale of each feature of the input; undefined: no smoothing.
  TORCH_ARG(torch::Tensor, smooth_scale);
  /// The width of the input's integers, 2 to 8.
  TORCH_ARG(int64_t, bits) = 8;
  /// The width of the weight's integers, 2 to 8.
  TORCH_ARG(int64_t, weight_bits) = 8;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
};

/// Options of WeightOnlyLinear and QuantizedConv2d.
struct BARAQUANT_API DequantizedOptions {
  /// What has no default.
  DequantizedOptions(torch::Tensor qweight, torch::Tensor weight_scale)
      : qweight_(std::move(qweight)), weight_scale_(std::move(weight_scale)) {}
  /// int8, the output channels first.
  TORCH_ARG(torch::Tensor, qweight);
  /// `[out_features]`, or `[out_features, groups]` with `group_size`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// Integer, shaped like `weight_scale`; undefined stands for 0.
  TORCH_ARG(torch::Tensor, weight_zero_point);
  /// The number of adjacent inputs of an output channel that share a scale.
  TORCH_ARG(std::optional<int64_t>, group_size);
  /// Rounds the input; empty leaves it as it is.
  TORCH_ARG(std::shared_ptr<FakeQuantizeImpl>, input_fake_quant);
  /// The width of the weight's integers, 2 to 8.
  TORCH_ARG(int64_t, weight_bits) = 8;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
};

/// Options of WeightOnlyInt4Linear.
struct BARAQUANT_API WeightOnlyInt4LinearOptions {
  /// What has no default.
  WeightOnlyInt4LinearOptions(torch::Tensor packed, torch::Tensor weight_scale, int64_t in_features)
      : packed_(std::move(packed)),
        weight_scale_(std::move(weight_scale)),
        in_features_(in_features) {}
  /// uint8 `[out_features, ceil(in_features / 2)]`, as pack_int4() returns it.
  TORCH_ARG(torch::Tensor, packed);
  /// `[out_features]`, or `[out_features, groups]` with `group_size`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// The number of columns that `packed` stands for.
  TORCH_ARG(int64_t, in_features);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// Integer, shaped like `weight_scale`; undefined stands for 0.
  TORCH_ARG(torch::Tensor, weight_zero_point);
  /// The number of adjacent inputs of an output channel that share a scale.
  TORCH_ARG(std::optional<int64_t>, group_size);
  /// Rounds the input; empty leaves it as it is.
  TORCH_ARG(std::shared_ptr<FakeQuantizeImpl>, input_fake_quant);
  /// The width of the weight's integers, 2 to 4. Each takes four bits.
  TORCH_ARG(int64_t, weight_bits) = 4;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
};

/// Options of QuantizedInt4Linear.
struct BARAQUANT_API QuantizedInt4LinearOptions {
  /// What has no default.
  QuantizedInt4LinearOptions(torch::Tensor packed, torch::Tensor weight_scale,
                             torch::Tensor group_factor, int64_t group_size, int64_t in_features)
      : packed_(std::move(packed)),
        weight_scale_(std::move(weight_scale)),
        group_factor_(std::move(group_factor)),
        group_size_(group_size),
        in_features_(in_features) {}
  /// uint8 `[out_features, ceil(in_features / 2)]`, as pack_int4() returns it.
  TORCH_ARG(torch::Tensor, packed);
  /// float32 (float64 for float64 inputs) `[out_features]`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// uint8 `[out_features, groups]`, 1 to 16.
  TORCH_ARG(torch::Tensor, group_factor);
  /// The number of adjacent columns that share a factor and a zero point, even.
  TORCH_ARG(int64_t, group_size);
  /// The number of columns that `packed` stands for.
  TORCH_ARG(int64_t, in_features);
  /// uint8 `[out_features, groups]`, 0 to 15; undefined stands for 8.
  TORCH_ARG(torch::Tensor, group_zero_point);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// The width of the input's integers, 2 to 8.
  TORCH_ARG(int64_t, bits) = 8;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
  /// true for no zero point of the input.
  TORCH_ARG(bool, symmetric) = true;
  /// "per_token", or "per_tensor": one scale for the whole input.
  TORCH_ARG(std::string, granularity) = "per_token";
};

/// Options of StaticQuantizedInt4Linear.
struct BARAQUANT_API StaticQuantizedInt4LinearOptions {
  /// What has no default.
  StaticQuantizedInt4LinearOptions(torch::Tensor packed, torch::Tensor weight_scale,
                                   torch::Tensor group_factor, torch::Tensor act_scale,
                                   int64_t group_size, int64_t in_features)
      : packed_(std::move(packed)),
        weight_scale_(std::move(weight_scale)),
        group_factor_(std::move(group_factor)),
        act_scale_(std::move(act_scale)),
        group_size_(group_size),
        in_features_(in_features) {}
  /// uint8 `[out_features, ceil(in_features / 2)]`, as pack_int4() returns it.
  TORCH_ARG(torch::Tensor, packed);
  /// float32 (float64 for float64 inputs) `[out_features]`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// uint8 `[out_features, groups]`, 1 to 16.
  TORCH_ARG(torch::Tensor, group_factor);
  /// `[]` or `[1]`, of the dtype of `weight_scale`: the scale of the input.
  TORCH_ARG(torch::Tensor, act_scale);
  /// The number of adjacent columns that share a factor and a zero point, even.
  TORCH_ARG(int64_t, group_size);
  /// The number of columns that `packed` stands for.
  TORCH_ARG(int64_t, in_features);
  /// uint8 `[out_features, groups]`, 0 to 15; undefined stands for 8.
  TORCH_ARG(torch::Tensor, group_zero_point);
  /// `[out_features]`, of the dtype of the scale or of the inputs.
  TORCH_ARG(torch::Tensor, bias);
  /// Integer `[]` or `[1]`; undefined stands for 0.
  TORCH_ARG(torch::Tensor, act_zero_point);
  /// The width of the input's integers, 2 to 8.
  TORCH_ARG(int64_t, bits) = 8;
  /// Of dequantized_weight(). Nothing: of the bias, else of the scale.
  TORCH_ARG(std::optional<torch::Dtype>, dtype);
  /// The block of hadamard(), by which the weight is rotated and the input is to be, before it is
  /// rounded; not beside smoothing. std::nullopt: no rotation.
  TORCH_ARG(std::optional<int64_t>, rotate);
};

/// Options of QuantizedEmbedding.
struct BARAQUANT_API QuantizedEmbeddingOptions {
  /// What has no default.
  QuantizedEmbeddingOptions(torch::Tensor qweight, torch::Tensor weight_scale)
      : qweight_(std::move(qweight)), weight_scale_(std::move(weight_scale)) {}
  /// int8 `[num_embeddings, embedding_dim]`.
  TORCH_ARG(torch::Tensor, qweight);
  /// `[num_embeddings]`, or `[num_embeddings, groups]` with `group_size`.
  TORCH_ARG(torch::Tensor, weight_scale);
  /// Integer, shaped like `weight_scale`; undefined stands for 0.
  TORCH_ARG(torch::Tensor, weight_zero_point);
  /// The width of the weight's integers, 2 to 8.
  TORCH_ARG(int64_t, weight_bits) = 8;
  /// Of the output.
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat32;
  /// The number of adjacent values of a row that share a scale.
  TORCH_ARG(std::optional<int64_t>, group_size);
  /// Kept for other code that reads it; here it is an ordinary row.
  TORCH_ARG(std::optional<int64_t>, padding_idx);
};

}  // namespace baraquant::nn
