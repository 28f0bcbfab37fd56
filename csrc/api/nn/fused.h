// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Norms, activations and gated MLPs that compute with the ops of the fused family, whose bits are
/// the same in training, in evaluation, and fused with the quantization of the result.
#pragma once

#include <torch/nn/options/activation.h>

#include <array>
#include <string>

#include "layer_options.h"

namespace baraquant::nn {

/// A module that computes with the ops of the fused family. A file notes which modules do.
class BARAQUANT_API FusedLayer : public Layer {
 protected:
  using Layer::Layer;
};

/// `y = x / sqrt(mean(x^2) + eps) * (weight + offset)` over the last dimension, by
/// baraquant::rms_norm, in the dtype of the input.
///
/// @throws c10::ValueError The size is not positive.
class BARAQUANT_API RMSNormImpl : public FusedLayer {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  torch::Tensor forward(const torch::Tensor& input) override;
  void pretty_print(std::ostream& stream) const override;

  RMSNormOptions options;
  torch::Tensor weight;  ///< undefined without elementwise_affine
  BARAQUANT_CLONES
};
TORCH_MODULE(RMSNorm);

/// `y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias` with `m = mean(x)`, over the last
/// dimension, by baraquant::layer_norm, in the dtype of the input.
///
/// @throws c10::ValueError The size is not positive.
class BARAQUANT_API LayerNormImpl : public FusedLayer {
 public:
  explicit LayerNormImpl(const LayerNormOptions& options);
  torch::Tensor forward(const torch::Tensor& input) override;
  void pretty_print(std::ostream& stream) const override;

  LayerNormOptions options;
  torch::Tensor weight;  ///< undefined without elementwise_affine
  torch::Tensor bias;    ///< undefined if there is none
  BARAQUANT_CLONES
};
TORCH_MODULE(LayerNorm);

/// torch::nn::GELU by baraquant::gelu; float64, which that has not, by PyTorch's.
///
/// @throws c10::ValueError `approximate` is neither "none" nor "tanh".
class BARAQUANT_API GELUImpl : public FusedLayer {
 public:
  explicit GELUImpl(const torch::nn::GELUOptions& options = {});
  torch::Tensor forward(const torch::Tensor& input) override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::GELUOptions options;
  BARAQUANT_CLONES
};
TORCH_MODULE(GELU);

/// `down(silu(gate(x)) * up(x))`, the feed-forward part of Llama and its relatives.
///
/// The activation is baraquant::silu_mul, or PyTorch's for float64. The three layers are children,
/// which prepare_ and convert_ may swap. If they are QuantizedLinear and nothing is recorded for a
/// gradient, `x` is quantized once for `gate` and `up`, and the activation gives integers at once;
/// the bits are the same.
class BARAQUANT_API GatedMLPImpl : public FusedLayer {
 public:
  using Names = std::array<std::string, 3>;
  /// @param gate A layer `[..., D]` to `[..., H]`, that baraquant::call can call.
  /// @param up A second one.
  /// @param down A layer `[..., H]` to `[..., D]`.
  /// @param names The names of the children.
  GatedMLPImpl(const std::shared_ptr<torch::nn::Module>& gate,
               const std::shared_ptr<torch::nn::Module>& up,
               const std::shared_ptr<torch::nn::Module>& down,
               Names names = {"gate_proj", "up_proj", "down_proj"});
  torch::Tensor forward(const torch::Tensor& input) override;
  void pretty_print(std::ostream& stream) const override;
  BARAQUANT_CLONES

  Names names_;
};
TORCH_MODULE(GatedMLP);

}  // namespace baraquant::nn
