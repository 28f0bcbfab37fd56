// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Layers for quantization-aware training; their weights stay floating.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "quantizers.h"

namespace baraquant::nn {

/// A layer whose weight passes through `weight_fake_quant`, and its input through
/// `input_fake_quant`.
class BARAQUANT_API FakeQuantizedLayer : public Layer {
 public:
  /// The weight as it will be stored: int8, its scale and its zero point, `[channels]`, or
  /// `[channels, groups]` for groups.
  Quantized quantized_weight();
  /// The rounded weight, with its gradient.
  torch::Tensor fake_quantized_weight();
  /// The module that rounds the input of the converted layer; empty if there is none.
  /// @throws c10::ValueError The range is not known yet, or a scale is NaN or infinite.
  std::shared_ptr<FakeQuantizeImpl> frozen_input() const;
  /// Whether the input has a range that no batch has set yet.
  bool has_unseen_input() const;
  /// Use the scale of another layer, which shares the weight: it is one parameter or range.
  void share_weight_quantizer(const FakeQuantizedLayer& other);
  /// Round the input with `quantizer` from now on; empty leaves it floating.
  void set_input_quantizer(std::shared_ptr<Quantizer> quantizer);
  /// Round the weight with `quantizer` from now on.
  void set_weight_quantizer(std::shared_ptr<Quantizer> quantizer);
  /// The weight that is quantized, with its gradient: the parameter as the optimizer holds it, rounded
  /// to the configuration's master().
  torch::Tensor weight_to_round() const;
  /// The bias, rounded to the configuration's master(); undefined if the layer has none.
  torch::Tensor bias_to_add() const;
  /// The weight as `weight_fake_quant` gets it: a matrix if groups need one.
  torch::Tensor rows_of_weight() const;
  const QuantConfig& config() const { return config_; }

  torch::Tensor weight;  ///< the parameter that is trained
  torch::Tensor bias;    ///< undefined if the layer has none
  std::shared_ptr<Quantizer> weight_fake_quant;
  std::shared_ptr<Quantizer> input_fake_quant;  ///< empty if the input stays floating

 protected:
  FakeQuantizedLayer(std::string name, const torch::Tensor& weight, const torch::Tensor& bias);
  /// Make the quantizers. `positions` is the number of values that an output channel has for each
  /// of its inputs, the size of a kernel: a group contains all of them.
  void set_quantizers(const QuantConfig& config, const std::optional<TensorConfig>& activation,
                      int64_t positions = 1);
  torch::Tensor rounded_input(const torch::Tensor& input);
  /// Numbers of a parameter, rounded to the configuration's master().
  torch::Tensor rounded_to_master(const torch::Tensor& numbers) const;
  /// Give a clone this layer's quantizers and switches.
  void clone_into(FakeQuantizedLayer& copy, const std::optional<torch::Device>& device) const;

 private:
  torch::Tensor as_rows(const torch::Tensor& weight) const;

  QuantConfig config_;
  bool is_grouped_ = false;
  int64_t fold_ = 0;  // where groups are observed: as rows of this length
};

/// Options of FakeQuantizedLinear.
struct BARAQUANT_API FakeQuantizedLinearOptions {
  FakeQuantizedLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  TORCH_ARG(int64_t, in_features);
  TORCH_ARG(int64_t, out_features);
  TORCH_ARG(bool, bias) = true;
  TORCH_ARG(QuantConfig, config) = W8A8();
};

/// A linear layer for quantization-aware training; `weight` and `bias` stay floating.
///
/// In evaluation it gives the same bits as the layer that convert_ makes of it. In training W8A8 and
/// W4A8 compute the integer product itself (qat_linear); otherwise the layer computes
/// `linear(input_fake_quant(x), weight_fake_quant(weight), bias)`.
///
/// With rotate() in the configuration `weight` is the rotated weight, and the layer rotates its input
/// first. The state dict has a buffer `rotation` as well, so that no floating weight is loaded by
/// mistake.
///
/// @throws c10::ValueError The configuration does not fit: the group size does not divide
///     `in_features`, or `in_features` is larger than an int32 sum allows.
class BARAQUANT_API FakeQuantizedLinearImpl : public FakeQuantizedLayer {
 public:
  FakeQuantizedLinearImpl(int64_t in_features, int64_t out_features)
      : FakeQuantizedLinearImpl(FakeQuantizedLinearOptions(in_features, out_features)) {}
  explicit FakeQuantizedLinearImpl(const FakeQuantizedLinearOptions& options);
  /// A layer that shares the parameters of a float one. A rotation of the weight is done in place;
  /// `rotates` false leaves it to rotate_weight().
  FakeQuantizedLinearImpl(const torch::nn::LinearImpl& linear, const QuantConfig& config,
                          bool rotates = true);
  /// A layer with given parameters, which it shares; `bias` may be undefined.
  FakeQuantizedLinearImpl(const torch::Tensor& weight, const torch::Tensor& bias,
                          const QuantConfig& config, bool rotates = true);

  torch::Tensor forward(const torch::Tensor& input) override;
  /// Rotate the weight in place if that is still to be done.
  void rotate_weight();
  /// Go on with a rotated copy of the weight if it is still to be rotated; the parameter stays.
  void copy_rotated_weight();
  /// Go on with the parameter, as before copy_rotated_weight().
  void drop_rotated_weight();
  /// Whether the converted layer multiplies integers by integers.
  bool is_integer() const { return is_integer_ && input_fake_quant != nullptr; }
  int64_t in_features() const { return weight.size(1); }
  int64_t out_features() const { return weight.size(0); }

  void pretty_print(std::ostream& stream) const override;
  BARAQUANT_CLONES

  torch::Tensor whole(const torch::Tensor& input);
  torch::Tensor float_output(const torch::Tensor& input);
  torch::Tensor integer_output(const torch::Tensor& input);
  torch::Tensor weight_only_output(const torch::Tensor& input);
  std::optional<torch::Tensor> constant_bias() const;

  bool is_integer_ = false;  // deployed as a product of integers
  bool is_whole_ = false;    // one op does it all, in training as well
  bool awaits_rotation_ = false;
};
TORCH_MODULE(FakeQuantizedLinear);

/// A Conv2d whose weight, and input, are fake-quantized; both stay floating.
///
/// In evaluation it gives the same bits as the layer that convert_ makes of it, and multiplies integers
/// where that one does. The input of a convolution takes no scale per token or per group: with such a
/// configuration it stays floating.
///
/// @throws c10::ValueError The group size does not divide `in_channels / groups`.
class BARAQUANT_API FakeQuantizedConv2dImpl : public FakeQuantizedLayer {
 public:
  explicit FakeQuantizedConv2dImpl(const torch::nn::Conv2dOptions& options,
                                   const QuantConfig& config = W8A8());
  /// A layer that shares the parameters of a float one.
  FakeQuantizedConv2dImpl(const torch::nn::Conv2dImpl& conv, const QuantConfig& config);
  /// A layer with given parameters, which it shares; `bias` may be undefined.
  FakeQuantizedConv2dImpl(const torch::nn::Conv2dOptions& options, const torch::Tensor& weight,
                          const torch::Tensor& bias, const QuantConfig& config);

  torch::Tensor forward(const torch::Tensor& input) override;

  void pretty_print(std::ostream& stream) const override;

  torch::nn::Conv2dOptions options;
  BARAQUANT_CLONES

  bool is_integer() const;
  torch::Tensor float_output(const torch::Tensor& input);
  torch::Tensor integer_output(const torch::Tensor& input);
};
TORCH_MODULE(FakeQuantizedConv2d);

/// An Embedding whose rows are fake-quantized; the table stays floating.
///
/// With a dynamic scale for each row or for groups within it, only the requested rows are read. Of
/// the configuration only the weight's part is used.
///
/// @throws c10::ValueError The group size does not divide `embedding_dim`, or `max_norm` is given.
class BARAQUANT_API FakeQuantizedEmbeddingImpl : public FakeQuantizedLayer {
 public:
  explicit FakeQuantizedEmbeddingImpl(const torch::nn::EmbeddingOptions& options,
                                      const QuantConfig& config = W8A8());
  /// A layer that shares the table of a float one.
  FakeQuantizedEmbeddingImpl(const torch::nn::EmbeddingImpl& embedding, const QuantConfig& config);

  /// The rounded rows for the indices `[...]`: `[..., embedding_dim]`.
  torch::Tensor forward(const torch::Tensor& input) override;

  void pretty_print(std::ostream& stream) const override;

  torch::nn::EmbeddingOptions options;
  BARAQUANT_CLONES

  torch::Tensor rows(const torch::Tensor& input, const torch::Tensor& table);
  bool rounds_rows_ = false;  // those asked for, not the table
};
TORCH_MODULE(FakeQuantizedEmbedding);

}  // namespace baraquant::nn
