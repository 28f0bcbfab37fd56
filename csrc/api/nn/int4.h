// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Weights of four bits with a whole factor for each group, for training and for inference.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "inference.h"
#include "quantizers.h"

namespace baraquant::nn {

/// A weight of four bits: `w8 = (u - z) * f` stands for `w8 * scale`.
struct BARAQUANT_API PackedInt4 {
  torch::Tensor packed;            ///< uint8 `[rows, ceil(columns / 2)]`: two numbers u in a byte
  torch::Tensor scale;             ///< `[rows]`
  torch::Tensor group_factor;      ///< f, uint8 `[rows, groups]`, 1 to 16
  torch::Tensor group_zero_point;  ///< z, uint8 `[rows, groups]`, 0 to 15

  /// The scale, the factors and the zero points that an op has found; no packed numbers.
  static PackedInt4 of(std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> found) {
    auto [scale, factor, zero_point] = std::move(found);
    return {{}, std::move(scale), std::move(factor), std::move(zero_point)};
  }
};

/// What quantizers to four bits have in common: a scale for each row of a weight, and a factor and a
/// zero point for each group.
class BARAQUANT_API RoundsToInt4 {
 public:
  virtual ~RoundsToInt4() = default;
  /// A weight `[rows, columns]` as packed numbers.
  PackedInt4 pack(const torch::Tensor& input);
  /// The scale, the factors and the zero points for a weight; no packed numbers.
  virtual PackedInt4 qparams_of(const torch::Tensor& input) = 0;
  /// What gives round() its gradient; its value is near that of round().
  virtual torch::Tensor smooth(const torch::Tensor& input) = 0;
  /// The number of adjacent columns that share a factor and a zero point.
  virtual int64_t group_size() const = 0;
  /// The width of the numbers, 2 to 4: `u - 8` is a signed integer of so many bits.
  virtual int64_t bits() const = 0;

 protected:
  Quantized int8_of(const torch::Tensor& input);
  torch::Tensor rounded(const torch::Tensor& input);
};

/// Rounds a weight to 2 to 4 bits; each row has a scale, and each group of columns a whole factor.
///
/// A product with the integers of an input is one exact sum over all groups. The gradient goes
/// straight through the rounding.
///
/// @throws c10::ValueError The group size is not even and above 0, or some tensors are missing.
/// @throws c10::TypeError A tensor has another dtype.
class BARAQUANT_API FakeQuantizeInt4Impl : public Quantizer, public RoundsToInt4 {
 public:
  explicit FakeQuantizeInt4Impl(FakeQuantizeInt4Options options);

  torch::Tensor round(const torch::Tensor& input) override { return rounded(input); }
  /// The int8 that a product multiplies, with scales and zeros `[rows]`.
  Quantized quantize(const torch::Tensor& input) override { return int8_of(input); }
  /// The given scale, with zeros.
  /// @throws c10::Error The scale comes from each weight.
  std::tuple<torch::Tensor, torch::Tensor> calculate_qparams() const override;
  PackedInt4 qparams_of(const torch::Tensor& input) override;
  /// The input itself: the gradient goes straight through.
  torch::Tensor smooth(const torch::Tensor& input) override { return input; }
  int64_t group_size() const override { return options.group_size(); }
  int64_t bits() const override { return options.bits(); }
  int64_t quant_min() const override { return -(int64_t{1} << (bits() - 1)); }
  int64_t quant_max() const override { return (int64_t{1} << (bits() - 1)) - 1; }
  bool is_dynamic() const { return !scale.defined(); }

  void pretty_print(std::ostream& stream) const override;

  /// The options as they were given, without the tensors, which are buffers.
  FakeQuantizeInt4Options options;
  torch::Tensor scale, group_factor, group_zero_point;  ///< undefined if from each weight
  BARAQUANT_CLONES
};
TORCH_MODULE(FakeQuantizeInt4);

/// Rounds a weight to 2 to 4 bits, and learns the scale of each row and the factor of each group.
///
/// Each group learns its step by the rule of LSQ, rounded to a whole multiple, 1 to 16, of the row's
/// scale, which is learned by the same rule. The parameters are `scale` `[rows, groups]`, the steps;
/// `zero_point` of that shape, if not symmetric, for signed integers; and `largest_step` `[rows]`,
/// 16 times the row's scale. They are NaN until initialize().
///
/// @throws c10::ValueError The group size is not even and above 0, the shape is not one of rows and
///     groups, or the rule is unknown.
/// @throws c10::TypeError The dtype is another one.
class BARAQUANT_API LearnedFakeQuantizeInt4Impl : public LearnedFakeQuantizeImpl,
                                                  public RoundsToInt4 {
 public:
  explicit LearnedFakeQuantizeInt4Impl(const LearnedFakeQuantizeInt4Options& options);

  torch::Tensor forward(const torch::Tensor& input) override {
    return rounds() ? round(input) : input;
  }
  /// @throws c10::Error The factors are not known yet.
  torch::Tensor round(const torch::Tensor& input) override { return rounded(input); }
  /// The int8 that a product multiplies, with scales and zeros `[rows]`.
  Quantized quantize(const torch::Tensor& input) override { return int8_of(input); }
  /// The steps and the int32 zero points, those of signed integers, of each group.
  std::tuple<torch::Tensor, torch::Tensor> calculate_qparams() const override;
  /// The current scale, factors and zero points. A row with a step or a zero point that is not finite
  /// has the scale NaN.
  PackedInt4 qparams() const { return qparams_in(scale.scalar_type()); }
  PackedInt4 qparams_of(const torch::Tensor& input) override;
  torch::Tensor smooth(const torch::Tensor& input) override;
  int64_t group_size() const override { return *options.group_size(); }
  int64_t bits() const override { return given_.bits(); }
  const std::string& scale_rule() const { return given_.scale_rule(); }
  /// Set the parameters to the factors that fit a weight `[rows, columns]`. A row with a NaN or an
  /// infinity changes nothing; `skipped_batches` counts such a weight.
  /// @throws c10::ValueError Its shape does not fit.
  void initialize(const torch::Tensor& input) override;
  /// Set the parameters to given factors; `packed` is not used.
  void start_from(const PackedInt4& given);

  void pretty_print(std::ostream& stream) const override;

  torch::Tensor largest_step;  ///< `[rows]`

 protected:
  void start_by(const torch::Tensor& input, bool only_unknown) override;
  BARAQUANT_CLONES

  void set(const PackedInt4& given, const torch::Tensor& is_taken);
  PackedInt4 qparams_in(torch::Dtype dtype) const;
  torch::Tensor row_scale(torch::Dtype dtype) const;
  void set_by_first(const torch::Tensor& input);
  LearnedFakeQuantizeInt4Options given_;
};
TORCH_MODULE(LearnedFakeQuantizeInt4);

/// A linear layer whose weights are packed numbers of four bits; `qweight` is undefined.
///
/// Its products are exact sums of integers, with the bits of the layers of int8 for int8_weight().
class BARAQUANT_API Int4Linear : public IntegerLinear {
 public:
  torch::Tensor int8_weight() const override;
  int64_t group_size() const { return *group_size_; }
  /// Check that every `(u - z) * f` is an int8.
  /// @throws c10::ValueError One is not.
  void check_products() const;

  torch::Tensor group_factor;      ///< uint8 `[out_features, groups]`, 1 to 16
  torch::Tensor group_zero_point;  ///< uint8 `[out_features, groups]`; undefined stands for 8

 protected:
  Int4Linear(const char* name, const Given& given);
  std::string weight_text(const char* whole) const override;
  /// As those of Int8Linear.
  torch::Tensor dynamic_product(const torch::Tensor& rows, bool symmetric,
                                std::optional<torch::Dtype> dtype) const;
  torch::Tensor static_product(const torch::Tensor& rows, const torch::Tensor& scale,
                               const torch::Tensor& zero_point, const torch::Tensor& smooth_scale,
                               std::optional<torch::Dtype> dtype) const;
};

}  // namespace baraquant::nn
