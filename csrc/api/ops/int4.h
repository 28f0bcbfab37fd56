// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Weights of four bits, and their products.
#pragma once

#include "call.h"

namespace baraquant {

/// Choose a scale for each row of a weight, and a whole factor for each group of its columns.
///
/// `w8 = (u - z) * f` is an int8 and stands for `w8 * scale`; `u` has four bits
///
/// @param weight `[N, K]`, float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param symmetric true puts 0 in the middle: all zero points are 8. false gives each group the
///     zero point of its range `[min(0, min w), max(0, max w)]`.
/// @param bits The width of the numbers, 2 to 4: `u - 8` and `z - 8` are signed integers of so many
///     bits.
/// @return The scale, `[N]`, float32 (float64 for a float64 weight). The factor `f`, `[N, ceil(K /
///     group_size)]`, uint8, 1 to 16. The zero point `z`, of the same shape and dtype, 0 to 15.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> choose_int4_qparams(const at::Tensor& weight,
                                                                          int64_t group_size,
                                                                          bool symmetric = true,
                                                                          int64_t bits = 4) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "choose_int4_qparams">(
      weight, group_size, symmetric, bits);
}

/// Quantize a weight to four bits with a factor for each group, and pack it.
///
/// `u = clamp(rint(w / (scale * f)) + z, 0, 15)`, two of them in a byte
///
/// @param weight `[N, K]`, float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first.
/// @param scale `[N]`, float32 (float64 for a float64 weight).
/// @param group_factor `f`, `[N, G]`, uint8, 1 to 16, with `G = ceil(K / group_size)`.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param group_zero_point `z`, `[N, G]`, uint8, 0 to 15; std::nullopt stands for 8.
/// @param bits The width of the numbers, 2 to 4: `u - 8` is a signed integer of so many bits. They
///     take four bits of memory in any case.
/// @return The packed numbers `u`, `[N, ceil(K / 2)]`, uint8: number `2 i` of a row is in the low
///     four bits of byte `i`, number `2 i + 1` in the high ones. The last byte of an odd row has
///     zeros there.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor quantize_int4(const at::Tensor& weight, const at::Tensor& scale,
                                const at::Tensor& group_factor, int64_t group_size,
                                const std::optional<at::Tensor>& group_zero_point = std::nullopt,
                                int64_t bits = 4) {
  return api::call<at::Tensor, "quantize_int4">(weight, scale, group_factor, group_size,
                                                group_zero_point, bits);
}

/// Turn packed numbers of four bits into the int8 weight that they stand for.
///
/// `w8 = (u - z) * f`
///
/// @param packed The numbers `u`, `[N, ceil(K / 2)]`, uint8: number `2 i` of a row is in the low
///     four bits of byte `i`, number `2 i + 1` in the high ones.
/// @param group_factor `f`, `[N, G]`, uint8, 1 to 16, with `G = ceil(K / group_size)`.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param in_features K.
/// @param group_zero_point `z`, `[N, G]`, uint8, 0 to 15; std::nullopt stands for 8.
/// @return `w8`, `[N, K]`, int8, contiguous. It is computed modulo 256 where an int8 cannot hold
///     it, which quantize_int4 never gives.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor expand_int4(const at::Tensor& packed, const at::Tensor& group_factor,
                              int64_t group_size, c10::SymInt in_features,
                              const std::optional<at::Tensor>& group_zero_point = std::nullopt) {
  return api::call<at::Tensor, "expand_int4">(packed, group_factor, group_size,
                                              std::move(in_features), group_zero_point);
}

/// Pack integers of -8 to 7, two in a byte.
///
/// `byte = (q[2 i] + 8) | (q[2 i + 1] + 8) << 4`
///
/// @param integers `q`, `[N, K]`, int8, -8 to 7; of others the low four bits of `q + 8` count. Any
///     strides; what is not contiguous is copied first.
/// @return `[N, ceil(K / 2)]`, uint8, contiguous. With `group_zero_point` std::nullopt, expand_int4
///     gives `q * f`. In memory each row has the bits of compressed-tensors' `weight_packed` for
///     four bits if K is a multiple of 8.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor pack_int4(const at::Tensor& integers) {
  return api::call<at::Tensor, "pack_int4">(integers);
}

/// Multiply integers by a weight of four bits: int8_linear of the expanded weight.
///
/// `y[t, n] = (sum_k (q[t, k] - z[t]) * w8[n, k]) * sw[n] * s[t] + bias[n]`
///
/// @param input The integers `q`, `[..., K]`; int8 or uint8. Any strides; what is not contiguous is
///     copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
/// @param packed The numbers `u`, `[N, ceil(K / 2)]`, uint8: number `2 i` of a row is in the low
///     four bits of byte `i`, number `2 i + 1` in the high ones. Contiguous.
/// @param input_scale `s`: one for all, `[]` or `[1]`, or one for each token, `[...]` or `[...,
///     1]`; float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[N]`, of the dtype of `input_scale`.
/// @param group_factor `f`, `[N, G]`, uint8, 1 to 16, with `G = ceil(K / group_size)`.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param bias `[N]`, of the dtype of `input_scale` or of the result; std::nullopt adds no bias.
/// @param group_zero_point `z`, `[N, G]`, uint8, 0 to 15; std::nullopt stands for 8.
/// @param input_zero_point `z`, shaped as `input_scale` may be, of any integer dtype; std::nullopt
///     stands for 0. A value that the dtype of `input` does not hold counts as the nearest one.
/// @param weight_sum `w8.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point of the input.
///     If it is std::nullopt, each call expands the weight and computes it.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor int4_linear(const at::Tensor& input, const at::Tensor& packed,
                              const at::Tensor& input_scale, const at::Tensor& weight_scale,
                              const at::Tensor& group_factor, int64_t group_size,
                              const std::optional<at::Tensor>& bias = std::nullopt,
                              const std::optional<at::Tensor>& group_zero_point = std::nullopt,
                              const std::optional<at::Tensor>& input_zero_point = std::nullopt,
                              const std::optional<at::Tensor>& weight_sum = std::nullopt,
                              at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "int4_linear">(input, packed, input_scale, weight_scale,
                                              group_factor, group_size, bias, group_zero_point,
                                              input_zero_point, weight_sum, dtype);
}

/// Quantize each token with the scale of its data, and multiply it by a weight of four bits.
///
/// `y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)` with `q, s, z =
/// dynamic_range_quantize_per_token(x)`
///
/// @param input `[..., K]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first. K is at most 131071, or 65536 if `symmetric` is false.
/// @param packed The numbers `u`, `[N, ceil(K / 2)]`, uint8: number `2 i` of a row is in the low
///     four bits of byte `i`, number `2 i + 1` in the high ones. Contiguous.
/// @param weight_scale `sw`, `[N]`, float32 (float64 for a float64 input).
/// @param group_factor `f`, `[N, G]`, uint8, 1 to 16, with `G = ceil(K / group_size)`.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param bias `[N]`, of the dtype of `weight_scale` or of the result; std::nullopt adds no bias.
/// @param group_zero_point `z`, `[N, G]`, uint8, 0 to 15; std::nullopt stands for 8.
/// @param symmetric true maps 0 of the input to the middle of the integers' range. false maps
///     `[min(0, min x), max(0, max x)]` of each token to `[quant_min, quant_max]`.
/// @param weight_sum `w8.sum(1, dtype=torch.int32)`, `[N]`; needed if `symmetric` is false. If it
///     is std::nullopt, each call expands the weight and computes it.
/// @param quant_min The smallest integer of the input, at least -128. If `symmetric` is true, it is
///     `-quant_max` or one less.
/// @param quant_max The largest integer of the input, at most 127.
/// @param dtype The dtype of the result: float32, float16 or bfloat16 (float64 for a float64
///     input); std::nullopt takes the dtype of `input`.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor quantized_int4_linear(
    const at::Tensor& input, const at::Tensor& packed, const at::Tensor& weight_scale,
    const at::Tensor& group_factor, int64_t group_size,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& group_zero_point = std::nullopt, bool symmetric = true,
    const std::optional<at::Tensor>& weight_sum = std::nullopt, int64_t quant_min = -128,
    int64_t quant_max = 127, std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "quantized_int4_linear">(
      input, packed, weight_scale, group_factor, group_size, bias, group_zero_point, symmetric,
      weight_sum, quant_min, quant_max, dtype);
}

/// Quantize the input with one given scale, and multiply it by a weight of four bits.
///
/// `y = int4_linear(q, packed, s, sw, f, group_size, bias, input_zero_point=z)` with `q =
/// quantize_per_tensor(x, s, z)`
///
/// @param input `[..., K]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first. K is at most 131071, or 65536 with a zero point.
/// @param packed The numbers `u`, `[N, ceil(K / 2)]`, uint8: number `2 i` of a row is in the low
///     four bits of byte `i`, number `2 i + 1` in the high ones. Contiguous.
/// @param weight_scale `sw`, `[N]`, float32 (float64 for a float64 input).
/// @param group_factor `f`, `[N, G]`, uint8, 1 to 16, with `G = ceil(K / group_size)`.
/// @param group_size The columns of a group, an even number of at most 2147483646; the last group
///     of a row may have fewer.
/// @param act_scale `s`, `[]` or `[1]`, of the dtype of `weight_scale`.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param group_zero_point `z`, `[N, G]`, uint8, 0 to 15; std::nullopt stands for 8.
/// @param act_zero_point `z`, `[]` or `[1]`, of any integer dtype; std::nullopt stands for 0. In
///     the sums, a value that int8 does not hold counts as the nearest one.
/// @param smooth_scale `s * smooth`, `[K]`, of the dtype of `weight_scale`: the input is divided by
///     `smooth`, and the weight was multiplied by it. std::nullopt: no smoothing.
/// @param weight_sum `w8.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point of the input.
///     If it is std::nullopt, each call expands the weight and computes it.
/// @param quant_min The smallest integer of the input, at least -128.
/// @param quant_max The largest integer of the input, at most 127.
/// @param dtype The dtype of the result: float32, float16 or bfloat16 (float64 for a float64
///     input); std::nullopt takes the dtype of `input`.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor static_quantized_int4_linear(
    const at::Tensor& input, const at::Tensor& packed, const at::Tensor& weight_scale,
    const at::Tensor& group_factor, int64_t group_size, const at::Tensor& act_scale,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& group_zero_point = std::nullopt,
    const std::optional<at::Tensor>& act_zero_point = std::nullopt,
    const std::optional<at::Tensor>& smooth_scale = std::nullopt,
    const std::optional<at::Tensor>& weight_sum = std::nullopt, int64_t quant_min = -128,
    int64_t quant_max = 127, std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "static_quantized_int4_linear">(
      input, packed, weight_scale, group_factor, group_size, act_scale, bias, group_zero_point,
      act_zero_point, smooth_scale, weight_sum, quant_min, quant_max, dtype);
}

}  // namespace baraquant
