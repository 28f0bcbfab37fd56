// SPDX-License-Identifier: BSD-3-Clause
// The convolution of integers that layers for training and for inference share.
#pragma once

#include <torch/nn/options/conv.h>

#include "api/nn/quantizers.h"

namespace baraquant::nn {

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
