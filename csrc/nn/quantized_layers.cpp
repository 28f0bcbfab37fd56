// SPDX-License-Identifier: BSD-3-Clause
// The layers that multiply integers, QuantizedLinear and StaticQuantizedLinear, and what all layers
// for inference share.
#include <ostream>

#include "api/nn/inference.h"
#include "api/ops.h"
#include "nn/copied_options.h"
#include "nn/layer_arguments.h"
#include "nn/product.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

torch::Tensor dequantized_rows(const QuantizedLayer& layer) {
  return dequantize_per_channel(layer.qweight, layer.weight_scale, std::nullopt, 0);
}

}  // namespace

// ---- QuantizedLayer -----------------------------------------------------------------------------

bool QuantizedLayer::is_scale(const std::string& name) const {
  return name.ends_with("scale") || name == "smooth";
}

void QuantizedLayer::converted(const std::optional<torch::Device>&,
                               const std::optional<torch::Dtype>& dtype) {
  if (dtype.has_value() && c10::isFloatingType(*dtype)) dtype_ = *dtype;
}

void QuantizedLayer::store(const Given& given, int64_t dimensions) {
  const std::string own = name();
  const char* kind = own.c_str();
  check_weight(kind, given.qweight, given.bias, dimensions);
  check_bits(kind, "weight_bits", given.weight_bits);
  qweight = register_buffer("qweight", given.qweight.contiguous());
  store_scales(given, qweight.sizes());
}

void QuantizedLayer::store_scales(const Given& given, at::IntArrayRef shape) {
  const std::string own = name();
  const char* kind = own.c_str();
  check_rotate(kind, given.rotate, shape[1]);
  weight_bits_ = given.weight_bits;
  rotate_ = given.rotate;
  const auto scale = scale_of_weight(kind, given.weight_scale, shape, given.group_size);
  const auto zeros = zero_point_of_weight(kind, given.weight_zero_point, scale);
  dtype_ = weight_dtype(kind, given.dtype, given.bias, scale);
  weight_scale = register_buffer("weight_scale", scale);
  if (given.bias.defined()) bias = register_buffer("bias", given.bias.detach());
  if (zeros.defined()) weight_zero_point = register_buffer("weight_zero_point", zeros);
}

void QuantizedLayer::print_begin(std::ostream& stream) const {
  const auto sizes = weight_sizes();
  stream << "baraquant::nn::" << name() << "(in_features=" << sizes[1]
         << ", out_features=" << sizes[0] << ", bias=" << (bias.defined() ? "true" : "false");
}

void QuantizedLayer::print_end(std::ostream& stream) const {
  if (rotate_.has_value()) stream << ", rotate=" << *rotate_;
  stream << ")";
}

torch::Tensor QuantizedLayer::rotated(const torch::Tensor& input) const {
  return rotate_.has_value() ? hadamard(input, *rotate_) : input;
}

// ---- IntegerLinear ------------------------------------------------------------------------------

void IntegerLinear::check_one(const char* smooth, const torch::Tensor& given) const {
  TORCH_CHECK_VALUE(!rotate_.has_value() || !given.defined(), name(), ": expected rotate or ",
                    smooth,
                    ", but got both; a rotation mixes the features that a smoothing divides");
}

// ---- QuantizedLinear ----------------------------------------------------------------------------

QuantizedLinearImpl::QuantizedLinearImpl(const QuantizedLinearOptions& options)
    : IntegerLinear("QuantizedLinear"),
      symmetric_(options.symmetric()),
      bits_(options.bits()),
      granularity_(options.granularity()) {
  const char* name = "QuantizedLinear";
  store({.qweight = options.qweight(),
         .weight_scale = options.weight_scale(),
         .bias = options.bias(),
         .weight_zero_point = {},
         .weight_bits = options.weight_bits(),
         .dtype = options.dtype(),
         .rotate = options.rotate()});
  check_bits(name, "bits", bits_);
  check_input_granularity(name, granularity_);
  check_one("smooth", options.smooth());
  if (options.smooth().defined()) {
    smooth = register_buffer("smooth", scale_of_inputs(name, options.smooth(), qweight.size(1)));
  }
}

torch::Tensor QuantizedLinearImpl::forward(const torch::Tensor& input) {
  if (rotate_.has_value() && granularity_ == "per_token" &&
      !(torch::GradMode::is_enabled() && input.requires_grad())) {
    return multiply(quantize(input));
  }
  const auto rows = smooth.defined() ? input / smooth : rotated(input);
  const auto low = low_of(bits_), high = high_of(bits_);
  // As in Python, given only where it differs from the default, the dtype of rows.
  const auto dtype = smooth.defined() ? std::optional(input.scalar_type()) : std::nullopt;
  if (granularity_ == "per_token") {
    return quantized_linear(rows, qweight, weight_scale, maybe(bias), symmetric_, std::nullopt, low,
                            high, dtype);
  }
  const auto [scale, zero_point] = choose_qparams_per_tensor(rows.detach(), low, high, symmetric_);
  const auto zeros = symmetric_ ? std::nullopt : std::optional(zero_point);
  return static_quantized_linear(rows, qweight, weight_scale, scale, maybe(bias), zeros,
                                 std::nullopt, std::nullopt, low, high, dtype);
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

torch::Tensor QuantizedLinearImpl::dequantized_weight() {
  const auto weight = dequantized_rows(*this);
  return rotated((smooth.defined() ? weight / smooth : weight).to(dtype_));
}

BARAQUANT_CLONE(QuantizedLinearImpl, copied_options(*this, device))

void QuantizedLinearImpl::pretty_print(std::ostream& stream) const {
  print_begin(stream);
  stream << ", weight=int" << weight_bits_ << " per_channel"
         << text::input(bits_, granularity_, symmetric_, "dynamic")
         << (smooth.defined() ? ", smooth" : "");
  print_end(stream);
}

// ---- StaticQuantizedLinear ----------------------------------------------------------------------

StaticQuantizedLinearImpl::StaticQuantizedLinearImpl(const StaticQuantizedLinearOptions& options)
    : IntegerLinear("StaticQuantizedLinear"), bits_(options.bits()) {
  const char* name = "StaticQuantizedLinear";
  store({.qweight = options.qweight(),
         .weight_scale = options.weight_scale(),
         .bias = options.bias(),
         .weight_zero_point = {},
         .weight_bits = options.weight_bits(),
         .dtype = options.dtype(),
         .rotate = options.rotate()});
  check_bits(name, "bits", bits_);
  check_one("smooth_scale", options.smooth_scale());
  const auto [one, zero] = scale_of_tensor(name, options.act_scale(), options.act_zero_point());
  act_scale = register_buffer("act_scale", one);
  if (zero.defined()) act_zero_point = register_buffer("act_zero_point", zero);
  if (options.smooth_scale().defined()) {
    const auto smooth = scale_of_inputs(name, options.smooth_scale(), qweight.size(1));
    smooth_scale = register_buffer("smooth_scale", smooth);
  }
}

torch::Tensor StaticQuantizedLinearImpl::forward(const torch::Tensor& input) {
  return static_quantized_linear(rotated(input), qweight, weight_scale, act_scale, maybe(bias),
                                 maybe(act_zero_point), maybe(smooth_scale), std::nullopt,
                                 low_of(bits_), high_of(bits_));
}

torch::Tensor StaticQuantizedLinearImpl::dequantized_weight() {
  auto weight = dequantized_rows(*this);
  if (smooth_scale.defined()) weight = weight / (smooth_scale / act_scale);
  return rotated(weight.to(dtype_));
}

BARAQUANT_CLONE(StaticQuantizedLinearImpl, copied_options(*this, device))

void StaticQuantizedLinearImpl::pretty_print(std::ostream& stream) const {
  print_begin(stream);
  stream << ", weight=int" << weight_bits_ << " per_channel"
         << text::input(bits_, "per_tensor", !act_zero_point.defined(), "static")
         << (smooth_scale.defined() ? ", smooth" : "");
  print_end(stream);
}

}  // namespace baraquant::nn
