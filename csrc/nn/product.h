// SPDX-License-Identifier: BSD-3-Clause
// The computations that layers for training and for inference share.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/pad.h>
#include <torch/nn/options/conv.h>

#include <string>
#include <vector>

#include "api/nn/quantizers.h"
#include "api/ops/call.h"

namespace baraquant::nn {

inline std::optional<at::Tensor> maybe(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The ends of the integers of a width.
inline int64_t low_of(int64_t bits) { return -(int64_t{1} << (bits - 1)); }
inline int64_t high_of(int64_t bits) { return (int64_t{1} << (bits - 1)) - 1; }

// A parameter rounded to "bfloat16" or "float16", QuantConfig's master(), in its own dtype; the
// gradient goes straight through. Nothing as the master, or as the parameter, gives the parameter.
inline at::Tensor round_master(const at::Tensor& parameter,
                               const std::optional<std::string>& master) {
  if (!master.has_value() || !parameter.defined()) return parameter;
  return api::call<at::Tensor, "_round_master">(parameter, *master == "bfloat16");
}

// linear(), by the same algorithm whether or not the weight requires grad: leading dimensions are
// always folded into one, so that a prepared and a converted layer give the same bits.
inline at::Tensor float_linear(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias) {
  if (input.dim() <= 2) return at::linear(input, weight, maybe(bias));
  const auto rows = at::linear(input.flatten(0, -2), weight, maybe(bias));
  auto sizes = input.sizes().vec();
  sizes.back() = rows.size(-1);
  return rows.reshape(sizes);
}

// `output` with the gradient of `smooth`, the same formula in floating point. What is subtracted is
// +0.0, which keeps the sign of -0.0, and stays 0 if the formula overflows.
inline at::Tensor straight_through(const at::Tensor& output, const at::Tensor& smooth) {
  return output - (smooth.detach() - smooth).nan_to_num(0.0).to(output.scalar_type());
}

// The same with the formula as a function, which is called if something is recorded for a gradient.
template <typename Smooth>
at::Tensor with_gradient(const at::Tensor& output, bool trains, const Smooth& smooth) {
  return at::GradMode::is_enabled() && trains ? straight_through(output, smooth()) : output;
}

// "zeros", "reflect", "replicate" or "circular".
const char* padding_mode_of(const torch::nn::detail::conv_padding_mode_t& mode);

// The paddings of both sides of both dimensions, the last dimension first, as at::pad takes them.
std::vector<int64_t> padding_sides_of(const torch::nn::Conv2dOptions& options);

// The convolution of torch::nn::Conv2d with a given weight.
at::Tensor float_conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        const torch::nn::Conv2dOptions& options);

// Whether a convolution multiplies integers in evaluation, and once it is converted. `rounds` says
// whether its input is rounded to int8 with one scale, `is_flat` whether its weight has a scale for
// each output channel and no zero point; `weight` is its shape, [OC, C / groups, ...].
bool is_integer_conv(bool rounds, bool is_flat, at::IntArrayRef weight, int64_t groups);

// A weight with the strides in which int8_conv reads it without a copy.
at::Tensor channels_inside(const at::Tensor& weight);

// What such a layer multiplies with. An undefined bias is none.
struct IntegerConv {
  at::Tensor qweight, weight_scale, bias;
  bool has_zero_point;  // of the input
};

// The convolution of the quantized input, in the dtype of `input`.
at::Tensor integer_conv2d(const at::Tensor& input, Quantizer& rounder, const IntegerConv& layer,
                          const torch::nn::Conv2dOptions& options);

}  // namespace baraquant::nn
