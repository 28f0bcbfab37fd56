// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// The convolution of integers.
#pragma once

#include "call.h"

namespace baraquant {

/// Convolve integers with exact sums, and scale these back to numbers.
///
/// `y[n, o, p] = (sum_ck (q[n, c, p * stride - padding + k * dilation] - z) * w[o, c, k]) * sw[o] *
/// s + bias[o]`
///
/// It is `torch.nn.functional.conv1d`, `conv2d` or `conv3d` of the numbers `(q - z) * s` and `w *
/// sw`, with the same bits on every device.
///
/// @param input The integers `q`, `[N, C, *space]` or `[C, *space]` with one to three dimensions of
///     space; int8 or uint8. Any strides; what is neither contiguous nor `channels_last` is copied
///     first.
/// @param weight The integers `w`, `[OC, C / groups, *kernel]`, int8. In the memory format
///     `channels_last` it is read as it lies, else each call copies it. `weight[0]` has at most
///     131071 elements, or 65536 for uint8 or with a zero point.
/// @param input_scale `s`, `[]` or `[1]`; float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[OC]`, of the dtype of `input_scale`.
/// @param bias `[OC]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param input_zero_point `z`, `[]` or `[1]`, of any integer dtype; std::nullopt stands for 0. A
///     value that the dtype of `input` does not hold counts as the nearest one.
/// @param weight_sum `weight.flatten(1).sum(1, dtype=torch.int32)`, `[OC]`; needed with a zero
///     point. If it is std::nullopt, each call computes it.
/// @param stride Of the kernel: one number, or one for each dimension of space.
/// @param padding Places that are added at both ends: one number, or one for each dimension of
///     space. They hold `z`, the integer of 0.
/// @param dilation The step between the kernel's places: one number, or one for each dimension of
///     space.
/// @param groups The number of groups of channels; it divides `OC`.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16; std::nullopt takes
///     the dtype of `weight_scale`.
/// @return `[N, OC, *out]` or `[OC, *out]`, of `dtype`: `channels_last` if `input` is, or is a
///     slice of such a tensor, else contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; a scale that requires grad;
///     torch.vmap over anything but the input.
inline at::Tensor int8_conv(const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& input_scale, const at::Tensor& weight_scale,
                            const std::optional<at::Tensor>& bias = std::nullopt,
                            const std::optional<at::Tensor>& input_zero_point = std::nullopt,
                            const std::optional<at::Tensor>& weight_sum = std::nullopt,
                            at::IntArrayRef stride = 1, at::IntArrayRef padding = 0,
                            at::IntArrayRef dilation = 1, int64_t groups = 1,
                            std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "int8_conv">(input, weight, input_scale, weight_scale, bias,
                                            input_zero_point, weight_sum, stride, padding, dilation,
                                            groups, dtype);
}

}  // namespace baraquant
