// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Layers for inference; they store integers.
#pragma once

#include <string>
#include <vector>

#include "training.h"

namespace baraquant::nn {

struct Given;  // the options of a layer of any class, of which the library makes layers

/// A layer that stores its weight as integers: as int8 in `qweight`, or packed.
///
/// The tensors have the names of Python's buffers. A gradient goes through a layer to its input as
/// it goes through the prepared layer.
class BARAQUANT_API QuantizedLayer : public Layer {
 public:
  /// The floating weight that the integers stand for.
  virtual torch::Tensor dequantized_weight() = 0;
  /// The integers as int8, in the layout of the weight.
  virtual torch::Tensor int8_weight() const { return qweight; }
  /// The sizes of int8_weight(), for which nothing is unpacked.
  virtual std::vector<int64_t> weight_sizes() const;
  /// Those of a linear layer.
  int64_t in_features() const { return weight_sizes()[1]; }
  int64_t out_features() const { return weight_sizes()[0]; }
  /// The dtype of dequantized_weight(); it follows the conversions of the module.
  torch::Dtype dtype() const { return dtype_; }
  /// The width of the weight's integers, 2 to 8.
  int64_t weight_bits() const { return weight_bits_; }
  /// The block that is rotated in inputs, and is in the integers; std::nullopt without a rotation.
  std::optional<int64_t> rotate() const { return rotate_; }
  /// Print the name, the sizes and the scheme of a linear layer.
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor qweight;  ///< undefined if the integers are packed
  torch::Tensor packed;   ///< uint8 `[out_features, ceil(in_features / 2)]`, or undefined
  torch::Tensor weight_scale;
  torch::Tensor bias;               ///< undefined if the layer has none
  torch::Tensor weight_zero_point;  ///< int32; undefined if symmetric

 protected:
  using Layer::Layer;
  bool is_scale(const std::string& name) const override;
  void converted(const std::optional<torch::Device>& device,
                 const std::optional<torch::Dtype>& dtype) override;
  /// Check the integers and the bias, and keep the integers.
  void store_integers(const Given& given, int64_t dimensions = 2);
  /// Check the scale, the zero point and the rotation, and keep them with the bias.
  void store_scales(const Given& given);
  /// The input as the integers need it: rotated, or as it is.
  torch::Tensor rotated(const torch::Tensor& input) const;
  /// How the weight is quantized, for pretty_print(); `whole` is the granularity without groups.
  virtual std::string weight_text(const char* whole = "per_channel") const;
  /// How the input becomes integers, for pretty_print().
  virtual std::string input_text() const { return ""; }
  torch::Dtype dtype_ = torch::kFloat32;
  int64_t weight_bits_ = 8;
  std::optional<int64_t> group_size_, rotate_;
  int64_t in_features_ = 0;  ///< of packed integers
};

/// A linear layer that multiplies integers: Int8Linear or Int4Linear, which store the weight and have
/// the products, by DynamicInput or StaticInput, which make integers of the input.
class BARAQUANT_API IntegerLinear : public QuantizedLayer {
 public:
  torch::Tensor dequantized_weight() override;
  /// The width of the input's integers, 2 to 8.
  int64_t bits() const { return bits_; }

 protected:
  using QuantizedLayer::QuantizedLayer;
  /// What the input is divided by before it becomes integers; undefined without smoothing.
  virtual torch::Tensor smoothing() const = 0;
  /// Check and keep what the scale of an input is divided by, and that the layer is not rotated too.
  void store_smoothing(const char* name, const torch::Tensor& given, torch::Tensor& smooth);
  int64_t bits_ = 8;
};

/// A linear layer that multiplies integers, with an int8 for each weight.
class BARAQUANT_API Int8Linear : public IntegerLinear {
 protected:
  Int8Linear(const char* name, const Given& given);
  /// The product with an input that gets a scale for each token, in its own dtype or in `dtype`.
  torch::Tensor dynamic_product(const torch::Tensor& rows, bool symmetric,
                                std::optional<torch::Dtype> dtype) const;
  /// The product with an input of one scale.
  torch::Tensor static_product(const torch::Tensor& rows, const torch::Tensor& scale,
                               const torch::Tensor& zero_point, const torch::Tensor& smooth_scale,
                               std::optional<torch::Dtype> dtype) const;
};

/// A linear layer of integers that computes the scale of its input from the input.
template <typename Weight>
class BARAQUANT_API DynamicInput : public Weight {
 public:
  torch::Tensor forward(const torch::Tensor& input) override;
  bool symmetric() const { return symmetric_; }
  const std::string& granularity() const { return granularity_; }

  torch::Tensor smooth;  ///< undefined without smoothing

 protected:
  DynamicInput(const char* name, const Given& given);
  torch::Tensor smoothing() const override { return smooth; }
  std::string input_text() const override;
  bool symmetric_;
  std::string granularity_;
};

/// A linear layer of integers whose input has one scale, fixed in advance.
template <typename Weight>
class BARAQUANT_API StaticInput : public Weight {
 public:
  torch::Tensor forward(const torch::Tensor& input) override;

  torch::Tensor act_scale;
  torch::Tensor act_zero_point;  ///< undefined if symmetric
  torch::Tensor smooth_scale;    ///< undefined without smoothing

 protected:
  StaticInput(const char* name, const Given& given);
  torch::Tensor smoothing() const override;
  std::string input_text() const override;
};

/// The integers of an input of QuantizedLinear, which layers with the same widths may share.
///
/// QuantizedLinear's quantize() makes one; so do the ops whose names end in `_quantize_per_token`.
struct BARAQUANT_API QuantizedInput {
  torch::Tensor values;      ///< int8 `[..., in_features]`
  torch::Tensor scale;       ///< of each token, `[..., 1]`, of the dtype of the layer's scales
  torch::Tensor zero_point;  ///< int32 `[..., 1]`; a symmetric layer ignores it, as it is 0
  torch::Dtype dtype;        ///< of the numbers, which the output will have
};

/// An integer linear layer that computes the scale of its input from the input (W8A8 dynamic).
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError The weight is not int8, the scale is not float32 or float64, or the dtype
///     is not floating.
class BARAQUANT_API QuantizedLinearImpl : public DynamicInput<Int8Linear> {
 public:
  explicit QuantizedLinearImpl(const QuantizedLinearOptions& options);
  explicit QuantizedLinearImpl(const Given& given);

  torch::Tensor forward(const torch::Tensor& input) override;
  /// The integers of an input: `multiply(quantize(x))` has the bits of `forward(x)`, but no gradient.
  ///
  /// @throws c10::ValueError The inputs have one scale in all.
  QuantizedInput quantize(const torch::Tensor& input) const;
  /// The output for an input of integers.
  ///
  /// @throws c10::ValueError The inputs have one scale in all, or the shapes do not fit.
  torch::Tensor multiply(const QuantizedInput& input) const;
  BARAQUANT_CLONES

  void check_per_token() const;
};
TORCH_MODULE(QuantizedLinear);

/// A layer that stores integers and may compute in floating point.
class BARAQUANT_API DequantizedLayer : public QuantizedLayer {
 public:
  torch::Tensor dequantized_weight() override { return rotated(dequantized(dtype_)); }
  std::optional<int64_t> group_size() const { return group_size_; }

  std::shared_ptr<FakeQuantizeImpl> input_fake_quant;  ///< empty if the input stays as it is

 protected:
  DequantizedLayer(const char* name, const Given& given, int64_t dimensions = 2);
  torch::Tensor dequantized(torch::Dtype dtype) const;
  torch::Tensor rounded_input(const torch::Tensor& input);
};

/// A linear layer that stores integers and computes in floating point.
class BARAQUANT_API FloatingLinear : public DequantizedLayer {
 public:
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor int8_weight() const override;

 protected:
  using DequantizedLayer::DequantizedLayer;
};

/// A Conv2d that stores integers, and multiplies them if its input is rounded.
///
/// It computes by int8_conv() if `input_fake_quant` gives int8 with one scale, the weight has a scale
/// for each output channel and no zero point, there is one group of channels, or each has one input
/// (depthwise) or at least 16, and `qweight[0]` has at most 65536 elements. Then `qweight` lies in
/// memory as with channels_last. Otherwise it computes in floating point. Of `conv`, PyTorch's
/// options, the channels and the kernel's size are those of `qweight`.
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API QuantizedConv2dImpl : public DequantizedLayer {
 public:
  QuantizedConv2dImpl(const DequantizedOptions& options, const torch::nn::Conv2dOptions& conv);
  QuantizedConv2dImpl(const Given& given, const torch::nn::Conv2dOptions& conv);
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override;

  void pretty_print(std::ostream& stream) const override;

  torch::nn::Conv2dOptions conv;
  /// Whether the product is given a floating weight of this memory format, as the layer that this one
  /// replaces gives it: PyTorch chooses its algorithm by that.
  bool channels_last = false;
  BARAQUANT_CLONES

  torch::Tensor float_weight(torch::Dtype dtype);
  torch::Tensor float_output(const torch::Tensor& input);
  bool is_integer_ = false;
};
TORCH_MODULE(QuantizedConv2d);

/// An embedding whose table is int8, with a scale for each row or for each group within it.
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API QuantizedEmbeddingImpl : public QuantizedLayer {
 public:
  explicit QuantizedEmbeddingImpl(const QuantizedEmbeddingOptions& options);
  explicit QuantizedEmbeddingImpl(const Given& given);
  /// The rows for the indices `[...]`: `[..., embedding_dim]`.
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override;
  std::optional<int64_t> group_size() const { return group_size_; }
  std::optional<int64_t> padding_idx() const { return padding_idx_; }
  int64_t num_embeddings() const { return qweight.size(0); }
  int64_t embedding_dim() const { return qweight.size(1); }

  void pretty_print(std::ostream& stream) const override;
  BARAQUANT_CLONES

  torch::Tensor dequantized(const torch::Tensor& rows, const torch::Tensor& scale,
                            const torch::Tensor& zero_point) const;
  std::optional<int64_t> padding_idx_;
};
TORCH_MODULE(QuantizedEmbedding);

}  // namespace baraquant::nn
