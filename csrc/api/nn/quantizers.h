// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// FakeQuantize and LearnedFakeQuantize: they round to a grid, with a straight-through gradient.
#pragma once

#include <map>
#include <vector>

#include "layer_options.h"

namespace baraquant::nn {

struct ByGranularity;  // which values share a scale

/// A module that rounds its input: FakeQuantize or LearnedFakeQuantize.
class BARAQUANT_API Quantizer : public Layer {
 public:
  using Layer::Layer;
  /// The input rounded to the grid, whatever the switches say; nothing is observed.
  virtual torch::Tensor round(const torch::Tensor& input) = 0;
  /// The input as int8, with scale and zero point; round() returns these integers dequantized.
  virtual Quantized quantize(const torch::Tensor& input) = 0;
  /// The positive scale and the int32 zero point.
  /// @throws c10::Error The mode "dynamic", which keeps none.
  virtual std::tuple<torch::Tensor, torch::Tensor> calculate_qparams() const = 0;
  /// Let the module round its input, or pass it through unchanged (an observer continues).
  virtual void enable_fake_quant(bool enabled = true) {
    rounds_.write(fake_quant_enabled, enabled);
  }
  void disable_fake_quant() { enable_fake_quant(false); }
  /// Whether enable_fake_quant is on, as far as the host knows it.
  virtual bool rounds() const { return rounds_.read(fake_quant_enabled); }
  virtual int64_t quant_min() const = 0;
  virtual int64_t quant_max() const = 0;
  /// The input rounded to the grid while enable_fake_quant is on.
  torch::Tensor forward(const torch::Tensor& input) override {
    return rounds() ? round(input) : input;
  }
  /// Load what torch::save has written.
  /// @throws c10::ValueError It comes from a module that quantizes otherwise.
  void load(torch::serialize::InputArchive& archive) override;
  /// Add to a state what it may lack; `path` is this module's.
  /// @throws c10::ValueError The state comes from a module that quantizes otherwise.
  void complete(std::map<std::string, torch::Tensor>& state, const std::string& path) const;
  /// Called after a state was loaded.
  virtual void loaded() { rounds_.version = -1; }

  torch::Tensor scheme;              ///< int32 `[7]`: how the module quantizes; in training only
  torch::Tensor fake_quant_enabled;  ///< uint8 `[1]`: the switch; in training only

 protected:
  /// What the host knows of a uint8 buffer. It reads the buffer only if other code has written into
  /// it, so that nothing else waits for the device.
  struct BARAQUANT_API Flag {
    bool read(const torch::Tensor& buffer);
    void write(const torch::Tensor& buffer, bool value);
    bool is_on;
    int64_t version = 0;
  };

  bool is_scale(const std::string&) const override { return true; }
  /// Register what a state needs to be resumed; `scales` is their number if they are kept.
  void keep_state(const std::string& kind, const ByGranularity& how, bool symmetric,
                  int64_t scales);
  mutable Flag rounds_{true};

 private:
  void check_scheme(const torch::Tensor& given, const std::string& prefix) const;
  // What a state that lacks an entry means; undefined if it has to have it.
  torch::Tensor implied(const std::string& name) const;
  std::vector<int64_t> scheme_;
};

/// Rounds its input to a quantization grid; the gradient goes straight through.
///
/// Buffers: `scale` and `zero_point` for "fixed"; for "observed" further `min_val`, `max_val`,
/// `observer_enabled`, `fake_quant_enabled` and `skipped_batches`. With `keeps_state` all modes have
/// `scheme` and `fake_quant_enabled`.
///
/// @throws c10::ValueError A mode, granularity, shape, range or number does not fit, or an option
///     is given that the mode does not use.
/// @throws c10::TypeError The scale is not float32 or float64, or the zero point is not integer.
class BARAQUANT_API FakeQuantizeImpl : public Quantizer {
 public:
  explicit FakeQuantizeImpl(FakeQuantizeOptions options = {});

  torch::Tensor forward(const torch::Tensor& input) override;
  /// @throws c10::ValueError The mode is "observed", and no batch has set the scale of this prepared
  ///   layer's input. quantize() throws it too.
  torch::Tensor round(const torch::Tensor& input) override;
  Quantized quantize(const torch::Tensor& input) override;
  std::tuple<torch::Tensor, torch::Tensor> calculate_qparams() const override;
  void enable_fake_quant(bool enabled = true) override;
  int64_t quant_min() const override { return options.quant_min(); }
  int64_t quant_max() const override { return options.quant_max(); }
  /// Let the module follow the range of its input, or freeze range and scale.
  /// @throws c10::Error The mode is not "observed".
  void enable_observer(bool enabled = true);
  void disable_observer() { enable_observer(false); }
  /// Forget the range and the skipped batches.
  /// @throws c10::Error The mode is not "observed".
  void reset_min_max_vals();
  /// A module of mode "fixed" with copies of this module's scale and zero point.
  /// @throws c10::Error The mode is "dynamic".
  std::shared_ptr<FakeQuantizeImpl> freeze() const;
  /// A copy for inference, without `scheme` and, unless "observed", without `fake_quant_enabled`.
  std::shared_ptr<FakeQuantizeImpl> without_state() const;
  bool is_dynamic() const { return options.mode() == "dynamic"; }
  bool is_observed() const { return options.mode() == "observed"; }

  void pretty_print(std::ostream& stream) const override;
  void loaded() override;

  /// The options as they were given, without `scale` and `zero_point`, which are buffers.
  FakeQuantizeOptions options;
  torch::Tensor scale, zero_point, min_val, max_val;
  torch::Tensor observer_enabled, skipped_batches;

 protected:
  FakeQuantizeImpl(FakeQuantizeOptions options, const std::string& kind);
  BARAQUANT_CLONES

  // The scale and the zero point of each row of a matrix.
  virtual std::tuple<torch::Tensor, torch::Tensor> qparams_of_rows(const torch::Tensor& rows) const;
  bool rounds_scale() const { return options.scale_dtype() != "float32"; }
  // Whether qparams_of() has the scale of a dynamic input; else the op does.
  virtual bool computes_scale() const { return is_dynamic() && rounds_scale(); }
  // The scale and the zero point of one input.
  std::tuple<torch::Tensor, torch::Tensor> qparams_of(const torch::Tensor& input) const;
  torch::Tensor observe(const torch::Tensor& input, const torch::Tensor& rounds);
  torch::Tensor observe_and_round(const torch::Tensor& input);
  void check_seen();
  bool is_seen_ = false;  // whether the scale was found to be known, which is read once
};
TORCH_MODULE(FakeQuantize);

/// Rounds a weight to -1, 0 and 1 times the mean of its absolute values (BitNet b1.58).
///
/// The scale is the mean of the values that share it, 1 where all are 0; the integers are
/// `clamp(rint(w / scale), -1, 1)`. The gradient goes straight through the rounding and the clamp.
class BARAQUANT_API FakeQuantizeTernaryImpl : public FakeQuantizeImpl {
 public:
  /// @param options Of these the granularity, the axis, the size of groups and the dtype of the scale
  ///   count.
  /// @throws c10::ValueError An option does not fit.
  explicit FakeQuantizeTernaryImpl(const FakeQuantizeOptions& options = {});

  torch::Tensor round(const torch::Tensor& input) override;
  BARAQUANT_CLONES
  std::tuple<torch::Tensor, torch::Tensor> qparams_of_rows(
      const torch::Tensor& rows) const override;
  bool computes_scale() const override { return true; }
};
TORCH_MODULE(FakeQuantizeTernary);

/// Rounds its input to a quantization grid, and learns the grid's step by gradient descent (LSQ;
/// with `symmetric(false)` the zero point too, LSQ+).
///
/// The parameters are `scale` and, if not symmetric, `zero_point`: NaN until the first finite batch
/// in training, or initialize(), sets them. A batch with a NaN or an infinity sets nothing: it gives
/// NaN, `skipped_batches` counts it, and the next batch is the first.
///
/// @throws c10::ValueError A granularity, shape or range does not fit.
class BARAQUANT_API LearnedFakeQuantizeImpl : public Quantizer {
 public:
  explicit LearnedFakeQuantizeImpl(LearnedFakeQuantizeOptions options = {});

  torch::Tensor forward(const torch::Tensor& input) override;
  /// @throws c10::Error The scale is not known yet.
  torch::Tensor round(const torch::Tensor& input) override;
  Quantized quantize(const torch::Tensor& input) override;
  std::tuple<torch::Tensor, torch::Tensor> calculate_qparams() const override;
  int64_t quant_min() const override { return options.quant_min(); }
  int64_t quant_max() const override { return options.quant_max(); }
  /// Set scale and zero point from the values of `input`. An empty input changes nothing. Nor do
  /// values that share a step and have a NaN or an infinity among them; `skipped_batches` counts such
  /// an input.
  virtual void initialize(const torch::Tensor& input);
  /// Set scale and zero point to given values.
  void start(const torch::Tensor& scale, const torch::Tensor& zero_point);
  /// Whether the scale is known.
  bool is_initialized() const;

  void pretty_print(std::ostream& stream) const override;
  void loaded() override;

  LearnedFakeQuantizeOptions options;
  torch::Tensor scale;
  torch::Tensor zero_point;       ///< undefined if symmetric
  torch::Tensor skipped_batches;  ///< int64 `[]`: of batches that were not finite
  torch::Tensor saw_zeros;        ///< uint8 `[1]`: whether there were zeros and nothing else yet

 protected:
  LearnedFakeQuantizeImpl(std::string name, LearnedFakeQuantizeOptions options);
  /// Set the parameters from the finite values of `input`; with `only_unknown`, known ones stay.
  virtual void start_by(const torch::Tensor& input, bool only_unknown);
  /// Which of these scales are taken. Counts the batch if one that is wanted is not finite.
  torch::Tensor is_new(const torch::Tensor& given, const torch::Tensor& known, bool only_unknown);
  void note_if_known();
  /// Give a clone this one's state and tensors.
  void clone_into(LearnedFakeQuantizeImpl& copy, const std::optional<torch::Device>& device) const;
  /// The positive scale and the zero point, for an input of this dtype.
  std::tuple<torch::Tensor, torch::Tensor> parameters_of(torch::Dtype dtype) const;

  mutable bool initialized_ = false;
  BARAQUANT_CLONES

  void initialize_by_first(const torch::Tensor& input);
  torch::Tensor round_to_grid(const torch::Tensor& input);
  Flag saw_zeros_{false};
};
TORCH_MODULE(LearnedFakeQuantize);

}  // namespace baraquant::nn
