// SPDX-License-Identifier: BSD-3-Clause
// The linear layers for inference: weights by inputs.
#include <algorithm>

#include "api/nn/linear.h"
#include "api/ops.h"
#include "nn/layer_arguments.h"
#include "nn/product.h"
#include "nn/served.h"
#include "nn/text.h"

namespace baraquant::nn {

// ---- Weights of products of integers ------------------------------------------------------------

torch::Tensor IntegerLinear::dequantized_weight() {
  auto weight = dequantize_per_channel(int8_weight(), weight_scale, std::nullopt, 0);
  const auto factors = smoothing();
  if (factors.defined()) weight = weight / factors;
  return rotated(weight.to(dtype_));
}

void IntegerLinear::store_smoothing(const char* argument, const torch::Tensor& given,
                                    torch::Tensor& smooth) {
  if (!given.defined()) return;
  TORCH_CHECK_VALUE(!rotate_.has_value(), name(), ": expected rotate or ", argument,
                    ", but got both; a rotation mixes the features that a smoothing divides");
  smooth = register_buffer(argument, scale_of_inputs(name(), argument, given, in_features()));
}

Int8Linear::Int8Linear(const char* name, const Given& given) : IntegerLinear(name) {
  store_integers(given);
  store_scales(given);
}

torch::Tensor Int8Linear::dynamic_product(const torch::Tensor& rows, bool symmetric,
                                          std::optional<torch::Dtype> dtype) const {
  return quantized_linear(rows, qweight, weight_scale, maybe(bias), symmetric, std::nullopt,
                          low_of(bits_), high_of(bits_), dtype);
}

torch::Tensor Int8Linear::static_product(const torch::Tensor& rows, const torch::Tensor& scale,
                                         const torch::Tensor& zero_point,
                                         const torch::Tensor& smooth_scale,
                                         std::optional<torch::Dtype> dtype) const {
  return static_quantized_linear(rows, qweight, weight_scale, scale, maybe(bias), maybe(zero_point),
                                 maybe(smooth_scale), std::nullopt, low_of(bits_), high_of(bits_),
                                 dtype);
}

// ---- Inputs of products of integers -------------------------------------------------------------

template <typename Weight>
DynamicInput<Weight>::DynamicInput(const char* name, const Given& given)
    : Weight(name, given), symmetric_(given.symmetric), granularity_(given.granularity) {
  this->bits_ = *given.bits;
  check_bits(name, "bits", this->bits_);
  check_input_granularity(name, granularity_);
  this->store_smoothing("smooth", given.smooth, smooth);
}

template <typename Weight>
torch::Tensor DynamicInput<Weight>::forward(const torch::Tensor& input) {
  const auto rows = smooth.defined() ? input / smooth : this->rotated(input);
  // As in Python, given only where it differs from the default, the dtype of rows.
  const auto dtype = smooth.defined() ? std::optional(input.scalar_type()) : std::nullopt;
  if (granularity_ == "per_token") return this->dynamic_product(rows, symmetric_, dtype);
  const auto [scale, zero_point] = choose_qparams_per_tensor(rows.detach(), low_of(this->bits_),
                                                             high_of(this->bits_), symmetric_);
  return this->static_product(rows, scale, symmetric_ ? torch::Tensor() : zero_point, {}, dtype);
}

template <typename Weight>
std::string DynamicInput<Weight>::input_text() const {
  return text::input(this->bits_, granularity_, symmetric_, "dynamic") +
         (smooth.defined() ? ", smooth" : "");
}

template <typename Weight>
StaticInput<Weight>::StaticInput(const char* name, const Given& given) : Weight(name, given) {
  this->bits_ = *given.bits;
  check_bits(name, "bits", this->bits_);
  const auto [one, zero] = scale_of_tensor(name, given.act_scale, given.act_zero_point);
  act_scale = this->register_buffer("act_scale", one);
  if (zero.defined()) act_zero_point = this->register_buffer("act_zero_point", zero);
  this->store_smoothing("smooth_scale", given.smooth_scale, smooth_scale);
}

template <typename Weight>
torch::Tensor StaticInput<Weight>::forward(const torch::Tensor& input) {
  return this->static_product(this->rotated(input), act_scale, act_zero_point, smooth_scale, {});
}

template <typename Weight>
torch::Tensor StaticInput<Weight>::smoothing() const {
  return smooth_scale.defined() ? smooth_scale / act_scale : smooth_scale;
}

template <typename Weight>
std::string StaticInput<Weight>::input_text() const {
  return text::input(this->bits_, "per_tensor", !act_zero_point.defined(), "static") +
         (smooth_scale.defined() ? ", smooth" : "");
}

// ---- QuantizedLinear and StaticQuantizedLinear --------------------------------------------------

template class DynamicInput<Int8Linear>;
template class StaticInput<Int8Linear>;

BARAQUANT_SERVED(QuantizedLinear, DynamicInput, QuantizedLinearOptions)
BARAQUANT_SERVED(StaticQuantizedLinear, StaticInput, StaticQuantizedLinearOptions)

torch::Tensor QuantizedLinearImpl::forward(const torch::Tensor& input) {
  const bool is_recorded = torch::GradMode::is_enabled() && input.requires_grad();
  const bool is_fused = rotate_.has_value() && granularity_ == "per_token" && !is_recorded;
  return is_fused ? multiply(quantize(input)) : DynamicInput::forward(input);
}

void QuantizedLinearImpl::check_per_token() const {
  TORCH_CHECK_VALUE(granularity_ == "per_token",
                    "QuantizedLinear: expected granularity per_token for an input of integers, but "
                    "got ",
                    granularity_, "; give the layer the floating input");
}

QuantizedInput QuantizedLinearImpl::quantize(const torch::Tensor& input) const {
  check_per_token();
  const auto rows = smooth.defined() ? input.detach() / smooth : input.detach();
  const auto low = low_of(bits_), high = high_of(bits_);
  auto [values, scale, zero_point] =
      rotate_.has_value() ? hadamard_quantize_per_token(rows, *rotate_, symmetric_, low, high)
                          : dynamic_range_quantize_per_token(rows, low, high, symmetric_);
  return {std::move(values), std::move(scale), std::move(zero_point), input.scalar_type()};
}

torch::Tensor QuantizedLinearImpl::multiply(const QuantizedInput& input) const {
  check_per_token();
  const auto zeros = symmetric_ ? std::nullopt : std::optional(input.zero_point);
  return int8_linear(input.values, qweight, input.scale, weight_scale, maybe(bias), zeros,
                     std::nullopt, input.dtype);
}

// ---- Layers of floating products ----------------------------------------------------------------

DequantizedLayer::DequantizedLayer(const char* name, const Given& given, int64_t dimensions)
    : QuantizedLayer(name), input_fake_quant(given.input_fake_quant) {
  if (input_fake_quant != nullptr) {
    if (input_fake_quant->scheme.defined()) input_fake_quant = input_fake_quant->without_state();
    register_module("input_fake_quant", input_fake_quant);
  }
  store_integers(given, dimensions);
  store_scales(given);
}

torch::Tensor DequantizedLayer::dequantized(torch::Dtype dtype) const {
  const auto own = int8_weight();
  if (!group_size_.has_value()) {
    return dequantize_per_channel(own, weight_scale, maybe(weight_zero_point), 0, dtype);
  }
  const auto rows = own.flatten(1);
  auto size = *group_size_;  // times the size of a kernel, whose positions a group contains
  for (int64_t dim = 2; dim < own.dim(); ++dim) size *= own.size(dim);
  const auto weight =
      dequantize_per_group(rows, weight_scale, maybe(weight_zero_point), size, 1, dtype);
  return weight.reshape(own.sizes());
}

torch::Tensor DequantizedLayer::rounded_input(const torch::Tensor& input) {
  return input_fake_quant == nullptr ? input : input_fake_quant->forward(input);
}

torch::Tensor FloatingLinear::forward(const torch::Tensor& input) {
  const auto own_bias = bias.defined() ? bias.to(input.scalar_type()) : bias;
  return weight_only_linear(rounded_input(rotated(input)), qweight.defined() ? qweight : packed,
                            weight_scale, maybe(own_bias), maybe(weight_zero_point), group_size_);
}

torch::Tensor FloatingLinear::int8_weight() const {
  if (!packed.defined()) return qweight;
  // In a group of all columns with the factor 1, the numbers stand for themselves.
  const auto size = std::max<int64_t>(in_features_ + in_features_ % 2, 2);
  const auto groups = std::min<int64_t>(in_features_, 1);
  const auto factor = torch::ones({packed.size(0), groups}, packed.options());
  return expand_int4(packed, factor, size, in_features_);
}

BARAQUANT_SERVED(WeightOnlyLinear, FloatingLinear, DequantizedOptions)
BARAQUANT_SERVED(WeightOnlyInt4Linear, FloatingLinear, WeightOnlyInt4LinearOptions)

}  // namespace baraquant::nn
