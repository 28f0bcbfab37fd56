// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Layers for inference; they store integers.
#pragma once

#include <vector>

#include "layer_options.h"
#include "training.h"

namespace baraquant::nn {

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
  virtual std::vector<int64_t> weight_sizes() const { return qweight.sizes().vec(); }
  /// The dtype of dequantized_weight(); it follows the conversions of the module.
  torch::Dtype dtype() const { return dtype_; }
  /// The width of the weight's integers, 2 to 8.
  int64_t weight_bits() const { return weight_bits_; }
  /// The block that is rotated in inputs, and is in the integers; std::nullopt without a rotation.
  std::optional<int64_t> rotate() const { return rotate_; }

  torch::Tensor qweight;
  torch::Tensor weight_scale;
  torch::Tensor bias;               ///< undefined if the layer has none
  torch::Tensor weight_zero_point;  ///< int32; undefined if symmetric

 protected:
  using Layer::Layer;
  bool is_scale(const std::string& name) const override;
  void converted(const std::optional<torch::Device>& device,
                 const std::optional<torch::Dtype>& dtype) override;
  /// What all layers store, as it was given.
  struct Given {
    torch::Tensor qweight, weight_scale, bias, weight_zero_point;
    int64_t weight_bits;
    std::optional<torch::Dtype> dtype;
    std::optional<int64_t> group_size = std::nullopt;
    std::optional<int64_t> rotate = std::nullopt;
  };
  /// Check the weight with its scale, zero point and bias, and keep them.
  void store(const Given& given, int64_t dimensions = 2);
  /// The same without the integers and without a check of the bias, for a weight of a shape.
  void store_scales(const Given& given, at::IntArrayRef shape);
  /// The input as the integers need it: rotated, or as it is.
  torch::Tensor rotated(const torch::Tensor& input) const;
  /// Print the name and the sizes of a linear layer, or the block of a rotation and the end.
  void print_begin(std::ostream& stream) const;
  void print_end(std::ostream& stream) const;
  torch::Dtype dtype_ = torch::kFloat32;
  int64_t weight_bits_ = 8;
  std::optional<int64_t> rotate_;
};

/// A linear layer that multiplies integers.
class BARAQUANT_API IntegerLinear : public QuantizedLayer {
 protected:
  using QuantizedLayer::QuantizedLayer;
  /// Check that a layer is not both rotated and smoothed, by a tensor of this name.
  void check_one(const char* smooth, const torch::Tensor& given) const;
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
class BARAQUANT_API QuantizedLinearImpl : public IntegerLinear {
 public:
  explicit QuantizedLinearImpl(const QuantizedLinearOptions& options);

  torch::Tensor forward(const torch::Tensor& input) override;
  /// The integers of an input: `multiply(quantize(x))` has the bits of `forward(x)`, but no gradient.
  ///
  /// @throws c10::ValueError The inputs have one scale in all.
  QuantizedInput quantize(const torch::Tensor& input) const;
  /// The output for an input of integers.
  ///
  /// @throws c10::ValueError The inputs have one scale in all, or the shapes do not fit.
  torch::Tensor multiply(const QuantizedInput& input) const;
  torch::Tensor dequantized_weight() override;
  bool symmetric() const { return symmetric_; }
  int64_t bits() const { return bits_; }
  const std::string& granularity() const { return granularity_; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor smooth;  ///< undefined without smoothing

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  void check_per_token() const;
  bool symmetric_;
  int64_t bits_;
  std::string granularity_;
};
TORCH_MODULE(QuantizedLinear);

/// An integer linear layer whose input has one scale, fixed in advance (W8A8 static).
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API StaticQuantizedLinearImpl : public IntegerLinear {
 public:
  explicit StaticQuantizedLinearImpl(const StaticQuantizedLinearOptions& options);

  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override;
  int64_t bits() const { return bits_; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor act_scale;
  torch::Tensor act_zero_point;  ///< undefined if symmetric
  torch::Tensor smooth_scale;    ///< undefined without smoothing

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  int64_t bits_;
};
TORCH_MODULE(StaticQuantizedLinear);

/// A layer that stores integers and may compute in floating point.
class BARAQUANT_API DequantizedLayer : public QuantizedLayer {
 public:
  torch::Tensor dequantized_weight() override { return dequantized(dtype_); }
  std::optional<int64_t> group_size() const { return group_size_; }

  std::shared_ptr<FakeQuantizeImpl> input_fake_quant;  ///< empty if the input stays as it is

 protected:
  DequantizedLayer(const std::string& name, const DequantizedOptions& options, int64_t dimensions);
  /// A layer whose weight is not stored yet.
  DequantizedLayer(const std::string& name, std::optional<int64_t> group_size,
                   std::shared_ptr<FakeQuantizeImpl> rounder);
  torch::Tensor dequantized(torch::Dtype dtype);
  torch::Tensor rounded_input(const torch::Tensor& input);
  void print_scheme(std::ostream& stream) const;

 private:
  std::optional<int64_t> group_size_;
};

/// A linear layer that stores integers and computes in floating point: for scales per group, for
/// weights with zero points, and for inputs that stay floating.
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API WeightOnlyLinearImpl : public DequantizedLayer {
 public:
  explicit WeightOnlyLinearImpl(const DequantizedOptions& options);
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override { return rotated(dequantized(dtype_)); }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
};
TORCH_MODULE(WeightOnlyLinear);

/// A WeightOnlyLinear whose weights of at most four bits take half a byte each; `qweight` is
/// undefined. It has the bits of a WeightOnlyLinear of int8_weight().
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API WeightOnlyInt4LinearImpl : public DequantizedLayer {
 public:
  explicit WeightOnlyInt4LinearImpl(const WeightOnlyInt4LinearOptions& options);
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override { return rotated(dequantized(dtype_)); }
  torch::Tensor int8_weight() const override;
  std::vector<int64_t> weight_sizes() const override { return {packed.size(0), in_features_}; }
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return packed.size(0); }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  torch::Tensor packed;  ///< uint8 `[out_features, ceil(in_features / 2)]`

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  int64_t in_features_;
};
TORCH_MODULE(WeightOnlyInt4Linear);

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
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  torch::nn::Conv2dOptions conv;
  /// Whether the product is given a floating weight of this memory format, as the layer that this one
  /// replaces gives it: PyTorch chooses its algorithm by that.
  bool channels_last = false;

 private:
  torch::Tensor float_weight(torch::Dtype dtype);
  torch::Tensor float_output(const torch::Tensor& input);
  bool is_integer_ = false;
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
};
TORCH_MODULE(QuantizedConv2d);

/// An embedding whose table is int8, with a scale for each row or for each group within it.
///
/// @throws c10::ValueError A shape or width does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API QuantizedEmbeddingImpl : public QuantizedLayer {
 public:
  explicit QuantizedEmbeddingImpl(const QuantizedEmbeddingOptions& options);
  /// The rows for the indices `[...]`: `[..., embedding_dim]`.
  torch::Tensor forward(const torch::Tensor& input) override;
  torch::Tensor dequantized_weight() override;
  std::optional<int64_t> group_size() const { return group_size_; }
  std::optional<int64_t> padding_idx() const { return padding_idx_; }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  torch::Tensor dequantized(const torch::Tensor& rows, const torch::Tensor& scale,
                            const torch::Tensor& zero_point) const;
  std::optional<int64_t> group_size_;
  std::optional<int64_t> padding_idx_;
};
TORCH_MODULE(QuantizedEmbedding);

}  // namespace baraquant::nn
