// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Configurations: what is quantized, and how.
///
///     auto config = baraquant::QuantConfig(
///         baraquant::TensorConfig().bits(4).granularity(baraquant::PerGroup(32)),
///         baraquant::TensorConfig().granularity(baraquant::PerToken()));
///
/// They have the fields, the defaults and the errors of Python's classes of the same names.
#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "export.h"

namespace baraquant {

/// Which values of a tensor share a scale; PerTensor() to PerGroup(size) make one.
struct Granularity {
  std::string name;                   ///< "per_tensor", "per_channel", "per_token" or "per_group"
  std::optional<int64_t> group_size;  ///< of "per_group"
};

/// One scale for the whole tensor.
inline Granularity PerTensor() { return {"per_tensor", std::nullopt}; }
/// A scale for each output channel of a weight, or for each row of an embedding.
inline Granularity PerChannel() { return {"per_channel", std::nullopt}; }
/// A scale for each token of an activation: for each vector along the last dimension.
inline Granularity PerToken() { return {"per_token", std::nullopt}; }
/// A scale for each group of `group_size` adjacent inputs of a layer.
inline Granularity PerGroup(int64_t group_size) { return {"per_group", group_size}; }

/// How one tensor, a weight or an activation, becomes integers.
///
/// The functions with an argument set a field and return the object. Errors come when the
/// configuration is used: by QuantConfig, by a layer, or by check().
class BARAQUANT_API TensorConfig {
 public:
  TensorConfig() = default;
  explicit TensorConfig(int64_t bits) : bits_(bits) {}

  /// Which values share a scale. For a weight: PerTensor(), PerChannel() or PerGroup(size). For an
  /// activation: PerTensor(), PerToken() or PerGroup(size).
  TensorConfig& granularity(const Granularity& granularity) {
    granularity_ = granularity;
    return *this;
  }
  /// true computes the scale from the values in each call. false keeps a scale that training or
  /// calibration observes, or that training learns. The default is true unless `learned`.
  TensorConfig& dynamic(bool dynamic) {
    dynamic_ = dynamic;
    return *this;
  }

  const std::string& granularity() const { return granularity_.name; }
  std::optional<int64_t> group_size() const { return granularity_.group_size; }
  bool dynamic() const { return dynamic_.value_or(!learned_); }
  /// Whether the integers of products in training come from the weight's fake quantizer.
  bool gives_integers() const { return group_factors_ || (ternary_ && !group_size().has_value()); }
  int64_t quant_min() const { return ternary_ ? -1 : -(int64_t{1} << (bits_ - 1)); }
  int64_t quant_max() const { return (int64_t{1} << (bits_ - 1)) - 1; }

  /// Check every field.
  /// @throws c10::ValueError A field has a value that it cannot have.
  void check() const;
  /// A short description: `int4 per_group(32) symmetric dynamic`.
  std::string str() const;
  bool operator==(const TensorConfig& other) const;

  /// The width of the integers, 2 to 8. They are signed: 4 bits are [-8, 7].
  TORCH_ARG(int64_t, bits) = 8;
  /// true (the default) for no zero point: 0 is in the middle of the range. false adds one.
  TORCH_ARG(bool, symmetric) = true;
  /// Whether the scale, and the zero point if there is one, is a trained parameter (LSQ, LSQ+). That
  /// of a weight starts as quantize_ finds it.
  TORCH_ARG(bool, learned) = false;
  /// For weights of linear layers with 2 to 4 bits in groups: true makes the scale of a group a whole
  /// number from 1 to 16 times one scale of the channel, so that a product with integers is one exact
  /// sum over all groups (nn::FakeQuantizeInt4, or nn::LearnedFakeQuantizeInt4). Other kinds of
  /// layers keep a floating scale for each group.
  TORCH_ARG(bool, group_factors) = false;
  /// For weights with 2 bits: true makes their integers -1, 0 and 1, and the scale the mean of the
  /// absolute values that share it (nn::FakeQuantizeTernary).
  TORCH_ARG(bool, ternary) = false;

 private:
  Granularity granularity_ = PerChannel();
  std::optional<bool> dynamic_;
};

/// A scheme: how the weights and the inputs of layers become integers.
class BARAQUANT_API QuantConfig {
 public:
  /// @param weight How weights are quantized.
  /// @param activation How the inputs of layers are quantized; std::nullopt leaves them floating.
  /// @throws c10::ValueError A field has a value that it cannot have.
  explicit QuantConfig(TensorConfig weight, std::optional<TensorConfig> activation = std::nullopt);

  /// How to find the range of a static activation: "min_max" (of all data), "moving_average" (the
  /// default, in which each batch counts 1 %), "percentile" (without the most extreme 0.01 % of the
  /// values) or "mse" (the minimum squared error). The last two need calibration data.
  /// @throws c10::ValueError Another name.
  QuantConfig& observer(std::string_view name);
  /// How quantize_ finds the scale of a weight: "search" (the default), "lattice" or "max", the max
  /// absolute value. "search" takes the scales that give the weight's own bits, if the weight is
  /// integers times scales already; a few groups decide whether all are looked at. Other groups get
  /// the scale of the minimum squared error, of 26 (with at most three bits of 41), or with eight bits
  /// that of "max". "lattice" looks
  /// at every group, and otherwise does the same. Weights that are ternary have a rule of their own.
  /// @throws c10::ValueError Another name.
  QuantConfig& scale_rule(std::string_view name);
  /// The dtype in which a server will hold the scales of weights: "float32" (the default), "bfloat16"
  /// or "float16". Every scale of a weight is rounded to it before the weight is quantized, in
  /// training and after it. The scales stay float32 tensors, with values that the dtype has.
  /// @throws c10::ValueError Another name.
  QuantConfig& scale_dtype(std::string_view name);
  /// Whether the inputs of convolutions are rounded: true by prepare_ and quantize_, false by neither.
  /// std::nullopt (the default): prepare_ rounds them if the activation is per tensor, and quantize_
  /// leaves them floating.
  /// @throws c10::ValueError true, and the activation is not per tensor.
  QuantConfig& conv_inputs(std::optional<bool> conv_inputs);
  /// How linear layers compute their gradients in training: "float" (the default), "int8_input" (the
  /// gradient of the input by a product of integers) or "int8" (that of the weight too). The last two
  /// need a symmetric dynamic weight per channel or group_factors(), a dynamic activation per token
  /// and the scale_dtype "float32". `rounding` says how they round gradients to integers: to the
  /// "nearest", or "stochastic". Layers without a product of integers keep "float".
  /// @throws c10::ValueError Another name, or a scheme whose products are floating in training.
  QuantConfig& backward(std::string_view name, std::string_view rounding = "nearest");

  /// The number of neighbours that hadamard() rotates in the input of a linear layer before it is
  /// quantized, a power of two in [2, 32768]; the weight is rotated to match. std::nullopt (the
  /// default): no rotation. A layer takes the largest power of two that divides its `in_features`
  /// and is at most this. Other layers, and those that share their weight, are not rotated.
  /// @throws c10::ValueError Another number.
  QuantConfig& rotate(std::optional<int64_t> rotate);

  /// The dtype that parameters are rounded to before anything else: "bfloat16", "float16", or
  /// std::nullopt (the default) for none. What is quantized is always the parameter as the optimizer
  /// holds it; with a master it is that parameter rounded to this dtype, in training and after it. The
  /// bias is rounded too. The gradient goes straight through, and the parameter keeps its dtype.
  /// @throws c10::ValueError Another name.
  QuantConfig& master(std::optional<std::string_view> name);

  const TensorConfig& weight() const { return weight_; }
  const std::optional<TensorConfig>& activation() const { return activation_; }
  const std::string& observer() const { return observer_; }
  const std::string& scale_rule() const { return scale_rule_; }
  const std::string& scale_dtype() const { return scale_dtype_; }
  std::optional<bool> conv_inputs() const { return conv_inputs_; }
  const std::string& backward() const { return backward_; }
  const std::string& rounding() const { return rounding_; }
  std::optional<int64_t> rotate() const { return rotate_; }
  const std::optional<std::string>& master() const { return master_; }
  /// The configuration of a linear layer with `features` inputs, whose rotate() is the block that it
  /// uses; 0 stands for a layer that is not rotated.
  QuantConfig with_rotation(int64_t features) const;
  /// Whether qat_linear computes a linear layer in training.
  bool trains_on_integers() const;
  /// Whether the range of the inputs is fixed in advance: observed, calibrated or learned.
  bool is_static() const { return activation_.has_value() && !activation_->dynamic(); }
  /// The same for the weights, but with floating inputs.
  QuantConfig with_floating_input() const;
  /// The same, but with a floating scale for each group of weights.
  QuantConfig with_float_scales() const;
  /// How weights are quantized: the short form of weight(), with the dtype of their scales unless it is
  /// float32, and their master if there is one.
  std::string weight_str() const;
  /// A short form: `weight=int8 per_channel symmetric dynamic, input=float`. What is not the
  /// default is added: `, backward=int8 stochastic, rotate=256`.
  std::string str() const;
  bool operator==(const QuantConfig& other) const = default;

 private:
  TensorConfig weight_;
  std::optional<TensorConfig> activation_;
  std::string observer_ = "moving_average";
  std::string scale_rule_ = "search";
  std::string scale_dtype_ = "float32";
  std::optional<bool> conv_inputs_;
  std::string backward_ = "float", rounding_ = "nearest";
  std::optional<int64_t> rotate_;
  std::optional<std::string> master_;

  void check_backward() const;
  void check_group_factors() const;
  std::string scheme_str() const;
};

/// int8 weights with a scale per channel, and int8 inputs with a dynamic scale per token.
BARAQUANT_API QuantConfig W8A8(bool symmetric = true);
/// int8 weights with a scale per channel, and int8 inputs with one scale for each layer.
BARAQUANT_API QuantConfig W8A8Static(std::string_view observer = "min_max", bool symmetric = true);
/// int8 weights with a scale per channel, and floating inputs.
BARAQUANT_API QuantConfig W8A16();
/// 4-bit weights with a scale for each group of inputs (std::nullopt: for each channel), and
/// floating inputs.
BARAQUANT_API QuantConfig W4A16(std::optional<int64_t> group_size = 128, bool symmetric = true,
                                std::string_view scale_rule = "search");
/// 4-bit weights with a scale for each group (std::nullopt: for each channel), and int8 inputs with
/// a scale per token. `group_factors` is that of TensorConfig; std::nullopt: true if there are
/// groups. With scales of another dtype than float32 it has to be false. `learned`: training learns
/// the scales and factors, which start from those of the rule.
BARAQUANT_API QuantConfig W4A8(std::optional<int64_t> group_size = 128, bool symmetric = true,
                               std::string_view scale_rule = "search",
                               std::optional<bool> group_factors = std::nullopt,
                               bool learned = false);
/// W4A16 with 3-bit weights.
BARAQUANT_API QuantConfig W3A16(std::optional<int64_t> group_size = 128, bool symmetric = true,
                                std::string_view scale_rule = "search");
/// W4A8 with 3-bit weights, whose numbers take 4 bits with factors.
BARAQUANT_API QuantConfig W3A8(std::optional<int64_t> group_size = 128, bool symmetric = true,
                               std::string_view scale_rule = "search",
                               std::optional<bool> group_factors = std::nullopt,
                               bool learned = false);
/// W4A16 with 2-bit weights, and by default with zero points: without one the four integers are -2
/// to 1.
BARAQUANT_API QuantConfig W2A16(std::optional<int64_t> group_size = 64, bool symmetric = false,
                                std::string_view scale_rule = "search");
/// W4A8 with 2-bit weights, whose numbers take 4 bits with factors; by default with zero points.
BARAQUANT_API QuantConfig W2A8(std::optional<int64_t> group_size = 64, bool symmetric = false,
                               std::string_view scale_rule = "search",
                               std::optional<bool> group_factors = std::nullopt,
                               bool learned = false);

}  // namespace baraquant
