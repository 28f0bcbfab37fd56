// SPDX-License-Identifier: BSD-3-Clause
// From the checked arguments of a convolution to the kernels of a device.
#pragma once

#include <ATen/core/Tensor.h>

#include "int8_conv/shape.h"

namespace baraquant::int8_conv {

// All tensors are on one device, and nothing in the shape is 0 but inputs. Scales and bias have the
// output's compute type. weight_sum is defined if zero_point is, unless the kernel finds the sums.
struct ConvCall {
  Shape shape;
  bool channels_last = false;     // the layout of input and output
  at::Tensor input;               // int8 or uint8, contiguous: [N, C, D, H, W], or [N, D, H, W, C]
  at::Tensor weight;              // int8 [OC, KD, KH, KW, C / groups], contiguous, or
  bool channels_first = false;    // [OC, C / groups, KD, KH, KW], on the CPU alone
  at::Tensor input_scale;         // [1]
  at::Tensor weight_scale, bias;  // [OC], contiguous; an undefined bias is none
  at::Tensor zero_point;          // int32 [1]; undefined means 0
  at::Tensor weight_sum;          // int32 [OC], contiguous
  at::Tensor output;              // contiguous: [N, OC, D, H, W], or [N, D, H, W, OC]
};

// How the CPU reads a weight [OC, C / groups, *kernel] that is contiguous: with its channels first, or
// last, where it returns a copy [OC, *kernel, C / groups] of it.
bool keeps_channels_first(const Shape& shape);
at::Tensor channels_last_copy(const at::Tensor& weight);

// Whether the convolution on the CPU finds the sums of the weight as it multiplies.
bool finds_sums_on_cpu(const Shape& shape);

// The convolution on the CPU.
void convolve_on_cpu(const ConvCall& call);

// The convolution by a copy of the patches and the kernels of the integer product, on any device.
void convolve_by_patches(const ConvCall& call);

}  // namespace baraquant::int8_conv
