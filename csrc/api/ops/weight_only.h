// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// The product of a floating input and a weight of integers.
#pragma once

#include "call.h"

namespace baraquant {

/// Multiply a floating input by a weight of integers, which stand for floating numbers.
///
/// `y = x @ w^.T + bias` with `w^ = (q - z) * s`
///
/// @param input `[..., K]`, float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first.
/// @param weight The integers `q`, contiguous: `[N, K]`, int8; or those of at most four bits,
///     packed by pack_int4: `[N, ceil(K / 2)]`, uint8.
/// @param weight_scale `s`, float32 (float64 for a float64 input): `[N]`, or `[N, ceil(K /
///     group_size)]` with `group_size`.
/// @param bias `[N]`, of the dtype of `input`; std::nullopt adds no bias.
/// @param weight_zero_point `z`, shaped like `weight_scale`, of any integer dtype; std::nullopt
///     stands for 0.
/// @param group_size The columns of a group that share a scale; the last group of a row may have
///     fewer. std::nullopt: the whole row shares one.
/// @return `[..., N]`, of the dtype of `input`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but `input`.
inline at::Tensor weight_only_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& weight_scale,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& weight_zero_point = std::nullopt,
    std::optional<c10::SymInt> group_size = std::nullopt) {
  return api::call<at::Tensor, "weight_only_linear">(input, weight, weight_scale, bias,
                                                     weight_zero_point, std::move(group_size));
}

}  // namespace baraquant
