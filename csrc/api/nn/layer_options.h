// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of layers.json and baraquant/nn: do not edit.
/// @file
/// The options of modules.
#pragma once

#include <torch/arg.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "module.h"

namespace baraquant::nn {

class FakeQuantizeImpl;

/// Options of FakeQuantize.
struct BARAQUANT_API FakeQuantizeOptions {
  using Scale = std::variant<std::monostate, double, torch::Tensor>;
  using ZeroPoint = std::variant<std::monostate, int64_t, torch::Tensor>;
  /// For `fixed`: a number > 0 (`per_tensor`), or a float32 or float64 tensor in the shape that
  /// the op of this granularity takes.
  TORCH_ARG(Scale, scale);
  /// For `fixed`: an integer, or an integer tensor shaped like `scale`; nothing stands for 0.
  TORCH_ARG(ZeroPoint, zero_point);
  /// `per_tensor`, `per_channel`, `per_token` or `per_group`; `observed` takes the first two.
  TORCH_ARG(std::string, granularity) = "per_tensor";
  /// The dimension of the channels (required for `per_channel`) or of the groups (`per_group`; by
  /// default the last).
  TORCH_ARG(std::optional<int64_t>, axis);
  /// The number of adjacent values that share a scale (required for `per_group`).
  TORCH_ARG(std::optional<int64_t>, group_size);
  /// The smallest integer of the grid.
  TORCH_ARG(int64_t, quant_min) = -128;
  /// The largest integer of the grid.
  TORCH_ARG(int64_t, quant_max) = 127;
  /// For `fixed`, what is kept for the backward pass. true: one bit per element. false: the
  /// input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
  /// bits.
  TORCH_ARG(std::optional<bool>, save_mask);
  /// `fixed`, `dynamic` or `observed`.
  TORCH_ARG(std::string, mode) = "fixed";
  /// For `dynamic` and `observed`: true puts the zero point in the middle of the grid, and the
  /// scale covers the largest absolute value. false fits the grid to the range of the values,
  /// extended to include 0.
  TORCH_ARG(bool, symmetric) = true;
  /// For `observed`: std::nullopt keeps the minimum and the maximum of all inputs. A number c in
  /// (0, 1] gives a moving average, in which each input has the weight c (1: only the last input
  /// counts).
  TORCH_ARG(std::optional<double>, averaging_constant);
  /// For `observed` and `per_channel`: the input's size along `axis`.
  TORCH_ARG(std::optional<int64_t>, channels);
  /// The dtype that every scale is rounded to before it is used: `float32`, `bfloat16` or
  /// `float16`, as in QuantConfig. The scale stays a float32 tensor. The zero point of a range is
  /// computed with the rounded scale. Groups then have to lie along the last dimension, and to
  /// divide it.
  TORCH_ARG(std::string, scale_dtype) = "float32";
  /// Whether the buffers include what only a training needs; copies for inference have less.
  TORCH_ARG(bool, keeps_state) = true;
};

/// Options of LearnedFakeQuantize.
struct BARAQUANT_API LearnedFakeQuantizeOptions {
  /// `per_tensor`, `per_channel` or `per_group`.
  TORCH_ARG(std::string, granularity) = "per_tensor";
  /// The dimension of the channels (required for `per_channel`) or of the groups (`per_group`; by
  /// default the last).
  TORCH_ARG(std::optional<int64_t>, axis);
  /// The number of adjacent values that share a step (required for `per_group`).
  TORCH_ARG(std::optional<int64_t>, group_size);
  /// The shape of `scale`: `[1]` for `per_tensor`, `[channels]` for `per_channel`, and for
  /// `per_group` the shape of the input with the number of groups along `axis`.
  TORCH_ARG(std::vector<int64_t>, shape) = { 1 };
  /// The smallest integer.
  TORCH_ARG(int64_t, quant_min) = -128;
  /// The largest integer, above 0.
  TORCH_ARG(int64_t, quant_max) = 127;
  /// true for no zero point.
  TORCH_ARG(bool, symmetric) = true;
  /// Whether `n`, the number of values that share a step, excludes the first dimension. Use it
  /// for activations, whose gradient is a mean over the batch.
  TORCH_ARG(bool, per_sample) = false;
  /// Of the parameters and buffers.
  TORCH_ARG(std::optional<torch::Device>, device);
  /// Of the parameters: float32 or float64.
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat32;
  /// The dtype that the step is rounded to before each use: `float32`, `bfloat16` or `float16`.
  /// The gradient goes straight through, and the parameter itself keeps its precision.
  TORCH_ARG(std::string, scale_dtype) = "float32";
  /// The dtype that the parameters are rounded to before each use, `bfloat16` or `float16`, as in
  /// QuantConfig; std::nullopt: none.
  TORCH_ARG(std::optional<std::string>, master);
};

/// Options of FakeQuantizeInt4.
struct BARAQUANT_API FakeQuantizeInt4Options {
  /// What has no default.
  FakeQuantizeInt4Options(int64_t group_size)  // NOLINT: as torch::nn's options
      : group_size_(group_size) {}
  /// The number of adjacent columns that share a factor and a zero point, even.
  TORCH_ARG(int64_t, group_size);
  /// true for the zero point 8 in every group, so that `u - z` lies in [-8, 7] (three bits: [-4,
  /// 3], two: [-2, 1]). false fits it to the range of a group, extended to include 0.
  TORCH_ARG(bool, symmetric) = true;
  /// float32 (float64 for a float64 weight) `[rows]`; undefined: from each weight.
  TORCH_ARG(torch::Tensor, scale);
  /// uint8 `[rows, groups]`; with a scale, and not without one.
  TORCH_ARG(torch::Tensor, group_factor);
  /// uint8 `[rows, groups]`, the same.
  TORCH_ARG(torch::Tensor, group_zero_point);
  /// The width of the numbers, 2 to 4.
  TORCH_ARG(int64_t, bits) = 4;
};

/// Options of LearnedFakeQuantizeInt4.
struct BARAQUANT_API LearnedFakeQuantizeInt4Options {
  /// What has no default.
  LearnedFakeQuantizeInt4Options(int64_t group_size, std::vector<int64_t> shape)
      : group_size_(group_size), shape_(std::move(shape)) {}
  /// The number of adjacent columns that share a factor and a zero point, even.
  TORCH_ARG(int64_t, group_size);
  /// `[rows, groups]`.
  TORCH_ARG(std::vector<int64_t>, shape);
  /// true for the zero point 8 in every group.
  TORCH_ARG(bool, symmetric) = true;
  /// The width of the numbers, 2 to 4.
  TORCH_ARG(int64_t, bits) = 4;
  /// How initialize finds the factors: `search` and `lattice` try all of them, `max` takes the
  /// least that clips nothing.
  TORCH_ARG(std::string, scale_rule) = "search";
  /// Of the parameters and buffers.
  TORCH_ARG(std::optional<torch::Device>, device);
  /// Of the parameters: float32 or float64.
  TORCH_ARG(torch::Dtype, dtype) = torch::kFloat32;
  /// As in LearnedFakeQuantize.
  TORCH_ARG(std::optional<std::string>, master);
};

/// Options of RMSNorm.
struct BARAQUANT_API RMSNormOptions {
  /// What has no default.
  RMSNormOptions(int64_t normalized_shape)  // NOLINT: as torch::nn's options
      : normalized_shape_(normalized_shape) {}
  /// The size of the last dimension.
  TORCH_ARG(int64_t, normalized_shape);
  /// What is added to the mean square. std::nullopt: the epsilon of the dtype that it computes
  /// in.
  TORCH_ARG(std::optional<double>, eps);
  /// Whether there is a weight.
  TORCH_ARG(bool, elementwise_affine) = true;
  /// Added to the weight; 1.0 in models that store the weight's distance from one, such as Gemma.
  TORCH_ARG(double, offset) = 0.0;
};

/// Options of LayerNorm.
struct BARAQUANT_API LayerNormOptions {
  /// What has no default.
  LayerNormOptions(int64_t normalized_shape)  // NOLINT: as torch::nn's options
      : normalized_shape_(normalized_shape) {}
  /// The size of the last dimension.
  TORCH_ARG(int64_t, normalized_shape);
  /// What is added to the variance.
  TORCH_ARG(double, eps) = 1e-05;
  /// Whether there is a weight.
  TORCH_ARG(bool, elementwise_affine) = true;
  /// Whether there is a bias beside the weight.
  TORCH_ARG(bool, bias) = true;
};

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
