// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Products of integers.
#pragma once

#include "call.h"

namespace baraquant {

/// Multiply integers, sum exactly in int32, and scale the sums back to numbers.
///
/// `y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]`
///
/// Integers carry no gradient. If the layers before are trained, use quantized_linear or
/// static_quantized_linear: they take the floating input and return a gradient for it.
///
/// @param input The integers `q`, `[..., K]`; int8 or uint8. Any strides; what is not contiguous is
///     copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous.
/// @param input_scale `s`: one for all, `[]` or `[1]`, or one for each token, `[...]` or `[...,
///     1]`; float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[N]`, of the dtype of `input_scale`.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param input_zero_point `z`, shaped as `input_scale` may be, of any integer dtype; std::nullopt
///     stands for 0. A value that the dtype of `input` does not hold counts as the nearest one.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point. If it is
///     std::nullopt, each call computes it.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor int8_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& input_scale, const at::Tensor& weight_scale,
                              const std::optional<at::Tensor>& bias = std::nullopt,
                              const std::optional<at::Tensor>& input_zero_point = std::nullopt,
                              const std::optional<at::Tensor>& weight_sum = std::nullopt,
                              at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "int8_linear">(input, weight, input_scale, weight_scale, bias,
                                              input_zero_point, weight_sum, dtype);
}

/// Multiply an input that is smoothed and quantized with one scale by quantized weights.
///
/// `y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]`
///
/// SmoothQuant divides each channel of the activations by a factor and multiplies the weights by
/// it. The division costs no extra step: `quantize_per_channel(x, s * smooth, std::nullopt, -1)`
/// gives the smoothed integers.
///
/// Integers carry no gradient. If the layers before are trained, use static_quantized_linear: it
/// does both steps in one and returns a gradient for `x`.
///
/// @param input The integers `q`, `[..., K]`; int8 or uint8. Any strides; what is not contiguous is
///     copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous.
/// @param weight_scale `sw`, `[N]`, float32 (float64 for a float64 result).
/// @param act_scale `s`, `[]` or `[1]`, of the dtype of `weight_scale`; or a number > 0.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param act_zero_point `z`: `[]`, `[1]` or one for each token, of any integer dtype; an int is
///     allowed only with a number as the scale; std::nullopt stands for 0. Of a tensor, a value
///     that the dtype of `input` does not hold counts as the nearest one; such a number is an
///     error.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point. If it is
///     std::nullopt, each call computes it.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor smoothquant_linear(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& weight_scale, const at::Tensor& act_scale,
                                     const std::optional<at::Tensor>& bias = std::nullopt,
                                     const std::optional<at::Tensor>& act_zero_point = std::nullopt,
                                     const std::optional<at::Tensor>& weight_sum = std::nullopt,
                                     at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "smoothquant_linear">(input, weight, weight_scale, act_scale, bias,
                                                     act_zero_point, weight_sum, dtype);
}

/// The same; the scale is a number and the zero point a number.
inline at::Tensor smoothquant_linear(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& weight_scale, double act_scale,
                                     const std::optional<at::Tensor>& bias = std::nullopt,
                                     std::optional<int64_t> act_zero_point = std::nullopt,
                                     const std::optional<at::Tensor>& weight_sum = std::nullopt,
                                     at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "smoothquant_linear", "number">(
      input, weight, weight_scale, act_scale, bias, act_zero_point, weight_sum, dtype);
}

/// Quantize each token to int8 with the scale of its own data, and multiply in integers.
///
/// `y[t, n] = (sum_k (q[t, k] - z[t]) * w[n, k]) * sw[n] * s[t] + bias[n]` with `q, s, z =
/// dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)`
///
/// @param input `[..., K]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first. K is at most 131071, or 65536 if `symmetric` is false.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous, as
///     dynamic_range_quantize_per_channel gives them for `axis` 0 of a matrix.
/// @param weight_scale `sw`, `[N]`, float32 (float64 for a float64 input).
/// @param bias `[N]`, of the dtype of `weight_scale` or of the result; std::nullopt adds no bias.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` of each token to `[quant_min, quant_max]`.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed if `symmetric` is false. If
///     it is std::nullopt, each call computes it.
/// @param quant_min The smallest integer of the input, at least -128. If `symmetric` is true, it is
///     `-quant_max` or one less. Four bits are -8 and 7.
/// @param quant_max The largest integer of the input, at most 127.
/// @param dtype The dtype of the result: float32, float16 or bfloat16 (float64 for a float64
///     input); std::nullopt takes the dtype of `input`.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor quantized_linear(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& weight_scale,
                                   const std::optional<at::Tensor>& bias = std::nullopt,
                                   bool symmetric = true,
                                   const std::optional<at::Tensor>& weight_sum = std::nullopt,
                                   int64_t quant_min = -128, int64_t quant_max = 127,
                                   std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "quantized_linear">(input, weight, weight_scale, bias, symmetric,
                                                   weight_sum, quant_min, quant_max, dtype);
}

/// Quantize the input to int8 with one scale that is given, and multiply in integers.
///
/// `y[t, n] = (sum_k (q[t, k] - z) * w[n, k]) * sw[n] * s + bias[n]` with `q =
/// quantize_per_tensor(input, s, z, quant_min, quant_max)`; where `smooth_scale` is given, with `q
/// = quantize_per_channel(input, smooth_scale, z, -1, quant_min, quant_max)`
///
/// This combines both steps of smoothquant_linear, so that the input gets a gradient.
///
/// @param input `[..., K]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first. K is at most 131071, or 65536 with a zero point.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous, as
///     dynamic_range_quantize_per_channel gives them for `axis` 0 of a matrix.
/// @param weight_scale `sw`, `[N]`, float32 (float64 for a float64 input).
/// @param act_scale `s`, `[]` or `[1]`, of the dtype of `weight_scale`.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param act_zero_point `z`, `[]` or `[1]`, of any integer dtype; std::nullopt stands for 0. In
///     the sums, a value that int8 does not hold counts as the nearest one.
/// @param smooth_scale `s * smooth`, `[K]`, of the dtype of `weight_scale`: the input is divided by
///     `smooth`, and the weight was multiplied by it. std::nullopt: no smoothing.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point. If it is
///     std::nullopt, each call computes it.
/// @param quant_min The smallest integer of the input, at least -128. Four bits are -8 and 7.
/// @param quant_max The largest integer of the input, at most 127.
/// @param dtype The dtype of the result: float32, float16 or bfloat16 (float64 for a float64
///     input); std::nullopt takes the dtype of `input`.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, a gradient of a scale; torch.vmap
///     over anything but the input.
inline at::Tensor static_quantized_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& weight_scale,
    const at::Tensor& act_scale, const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& act_zero_point = std::nullopt,
    const std::optional<at::Tensor>& smooth_scale = std::nullopt,
    const std::optional<at::Tensor>& weight_sum = std::nullopt, int64_t quant_min = -128,
    int64_t quant_max = 127, std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "static_quantized_linear">(input, weight, weight_scale, act_scale,
                                                          bias, act_zero_point, smooth_scale,
                                                          weight_sum, quant_min, quant_max, dtype);
}

/// Quantize weights and tokens to int8 and multiply them in integers, differentiably.
///
/// `y = quantized_linear(input, w, sw, bias, symmetric=symmetric, quant_min=quant_min,
/// quant_max=quant_max)` with `w, sw, _ = dynamic_range_quantize_per_channel(weight, 0,
/// weight_quant_min, weight_quant_max)`, or the `qweight` and `weight_scale` that are given
///
/// What is trained is, bit for bit, what is deployed. Under autocast the input is cast first, as
/// that of torch.nn.functional.linear is; the weight is not, and so has the integers that are
/// deployed.
///
/// @param input `[..., K]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first. K is at most 131071, or 65536 if `symmetric` is false.
/// @param weight `[N, K]`, of the compute type of `input`: it may be float32 where that has 16
///     bits, as a master weight is.
/// @param bias `[N]`, of the dtype of `input`, or float32 (float64 for a float64 input);
///     std::nullopt adds no bias.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` of each token to `[quant_min, quant_max]`. The weight is always symmetric.
/// @param weight_quant_min The smallest integer of the weight: `-weight_quant_max` or one less, and
///     at least -128. Four bits are -8 and 7.
/// @param weight_quant_max The largest integer of the weight, 1 to 127.
/// @param quant_min The smallest integer of the input, at least -128. If `symmetric` is true, it is
///     `-quant_max` or one less. Four bits are -8 and 7.
/// @param quant_max The largest integer of the input, at most 127.
/// @param backward How the backward pass computes, see below: `"float"`, `"int8_input"` (the
///     gradient of `input` from integers) or `"int8"` (that of `weight` too).
/// @param rounding How `"int8_input"` and `"int8"` round the gradient of the output: `"nearest"`,
///     or `"stochastic"` with the numbers of PyTorch's generator of the device.
/// @param qweight The integers of the weight, int8 `[N, K]`, contiguous, where they are known: of
///     four bits (expand_int4), gathered, or found by another rule. `weight_quant_min` and
///     `weight_quant_max` are not used then. std::nullopt: those of `weight`.
/// @param weight_scale The scales of `qweight`, `[N]`, float32 (float64 for a float64 input), given
///     with it or not at all.
/// @return `[..., N]`, of the dtype of `input`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias = std::nullopt,
                             bool symmetric = true, int64_t weight_quant_min = -128,
                             int64_t weight_quant_max = 127, int64_t quant_min = -128,
                             int64_t quant_max = 127, std::string_view backward = "float",
                             std::string_view rounding = "nearest",
                             const std::optional<at::Tensor>& qweight = std::nullopt,
                             const std::optional<at::Tensor>& weight_scale = std::nullopt) {
  return api::call<at::Tensor, "qat_linear">(input, weight, bias, symmetric, weight_quant_min,
                                             weight_quant_max, quant_min, quant_max, backward,
                                             rounding, qweight, weight_scale);
}

/// Multiply the integers of each group of tokens by the weight of the group.
///
/// `y[t, n] = (sum_k (q[t, k] - z[t]) * w[e, n, k]) * sw[e, n] * s[t] + bias[e, n]` with the group
/// `e` of token `t`
///
/// Each group's rows are, bit for bit, those of int8_linear with its weight. A group may have no
/// token at all. Tokens behind the last group give 0.
///
/// @param input The integers `q`, `[T, K]`, the tokens of each group in adjacent rows; int8 or
///     uint8. Any strides; what is not contiguous is copied first. K is at most 131071, or 65536
///     for uint8 or with a zero point.
/// @param weight The integers `w`, `[E, N, K]`, int8, contiguous.
/// @param offsets Where the rows of each group end, `[E]`, int32: group e has the rows from
///     `offsets[e - 1]` (0 for the first) to `offsets[e]`. They ascend, and none exceeds T, which
///     is at most 2147483647. On a GPU only the device reads them: an offset that does not ascend,
///     or exceeds T, is replaced by the nearest valid one.
/// @param input_scale `s`: one for all, `[]` or `[1]`, or one for each token, `[T]` or `[T, 1]`;
///     float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[E, N]`, of the dtype of `input_scale`.
/// @param bias `[E, N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param input_zero_point `z`, shaped as `input_scale` may be, of any integer dtype; std::nullopt
///     stands for 0. A value that the dtype of `input` does not hold counts as the nearest one.
/// @param weight_sum `weight.sum(2, dtype=torch.int32)`, `[E, N]`; needed with a zero point. If it
///     is std::nullopt, each call computes it.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[T, N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor int8_grouped_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offsets,
    const at::Tensor& input_scale, const at::Tensor& weight_scale,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& input_zero_point = std::nullopt,
    const std::optional<at::Tensor>& weight_sum = std::nullopt, at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "int8_grouped_linear">(
      input, weight, offsets, input_scale, weight_scale, bias, input_zero_point, weight_sum, dtype);
}

/// Quantize each token to int8, and multiply it by the weight of its group in integers.
///
/// `y = int8_grouped_linear(q, weight, offsets, s, weight_scale, bias, input_zero_point=z)` with
/// `q, s, z = dynamic_range_quantize_per_token(input, quant_min, quant_max, symmetric=symmetric)`
///
/// Each group's rows are, bit for bit, those of quantized_linear with its weight. A group may have
/// no token at all. Tokens behind the last group give 0.
///
/// @param input `[T, K]`, the tokens of each group in adjacent rows; float32, float64, float16 or
///     bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or 65536
///     if `symmetric` is false.
/// @param weight The integers `w`, `[E, N, K]`, int8, contiguous, as
///     dynamic_range_quantize_per_channel gives them for `axis` 0 of a matrix.
/// @param offsets Where the rows of each group end, `[E]`, int32: group e has the rows from
///     `offsets[e - 1]` (0 for the first) to `offsets[e]`. They ascend, and none exceeds T, which
///     is at most 2147483647. On a GPU only the device reads them: an offset that does not ascend,
///     or exceeds T, is replaced by the nearest valid one.
/// @param weight_scale `sw`, `[E, N]`, float32 (float64 for a float64 input).
/// @param bias `[E, N]`, of the dtype of `weight_scale` or of the result; std::nullopt adds no
///     bias.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` of each token to `[quant_min, quant_max]`.
/// @param weight_sum `weight.sum(2, dtype=torch.int32)`, `[E, N]`; needed if `symmetric` is false.
///     If it is std::nullopt, each call computes it.
/// @param quant_min The smallest integer of the input, at least -128. If `symmetric` is true, it is
///     `-quant_max` or one less. Four bits are -8 and 7.
/// @param quant_max The largest integer of the input, at most 127.
/// @param dtype The dtype of the result: float32, float16 or bfloat16 (float64 for a float64
///     input); std::nullopt takes the dtype of `input`.
/// @return `[T, N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor quantized_grouped_linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offsets,
    const at::Tensor& weight_scale, const std::optional<at::Tensor>& bias = std::nullopt,
    bool symmetric = true, const std::optional<at::Tensor>& weight_sum = std::nullopt,
    int64_t quant_min = -128, int64_t quant_max = 127,
    std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "quantized_grouped_linear">(input, weight, offsets, weight_scale,
                                                           bias, symmetric, weight_sum, quant_min,
                                                           quant_max, dtype);
}

/// Quantize weights and tokens to int8 and multiply them in groups, differentiably.
///
/// `y = quantized_grouped_linear(input, w, offsets, sw, bias, symmetric=symmetric,
/// quant_min=quant_min, quant_max=quant_max)` where `w[e], sw[e], _ =
/// dynamic_range_quantize_per_channel(weight[e], 0, weight_quant_min, weight_quant_max)`
///
/// What is trained is, bit for bit, what is deployed, and each group's rows are those of qat_linear
/// with its weight. Under autocast the input is cast first, as there.
///
/// @param input `[T, K]`, the tokens of each group in adjacent rows; float32, float64, float16 or
///     bfloat16. Any strides; what is not contiguous is copied first. K is at most 131071, or 65536
///     if `symmetric` is false.
/// @param weight `[E, N, K]`, of the compute type of `input`: it may be float32 where that has 16
///     bits, as a master weight is.
/// @param offsets Where the rows of each group end, `[E]`, int32: group e has the rows from
///     `offsets[e - 1]` (0 for the first) to `offsets[e]`. They ascend, and none exceeds T, which
///     is at most 2147483647. On a GPU only the device reads them: an offset that does not ascend,
///     or exceeds T, is replaced by the nearest valid one.
/// @param bias `[E, N]`, of the dtype of `input`, or float32 (float64 for a float64 input);
///     std::nullopt adds no bias.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` of each token to `[quant_min, quant_max]`. The weight is always symmetric.
/// @param weight_quant_min The smallest integer of the weight: `-weight_quant_max` or one less, and
///     at least -128. Four bits are -8 and 7.
/// @param weight_quant_max The largest integer of the weight, 1 to 127.
/// @param quant_min The smallest integer of the input, at least -128. If `symmetric` is true, it is
///     `-quant_max` or one less. Four bits are -8 and 7.
/// @param quant_max The largest integer of the input, at most 127.
/// @param backward `"float"`; for groups there is no backward pass of integers yet.
/// @param rounding `"nearest"`; only a backward pass of integers rounds.
/// @return `[T, N]`, of the dtype of `input`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor qat_grouped_linear(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& offsets,
                                     const std::optional<at::Tensor>& bias = std::nullopt,
                                     bool symmetric = true, int64_t weight_quant_min = -128,
                                     int64_t weight_quant_max = 127, int64_t quant_min = -128,
                                     int64_t quant_max = 127, std::string_view backward = "float",
                                     std::string_view rounding = "nearest") {
  return api::call<at::Tensor, "qat_grouped_linear">(input, weight, offsets, bias, symmetric,
                                                     weight_quant_min, weight_quant_max, quant_min,
                                                     quant_max, backward, rounding);
}

/// Multiply integers and return their exact sums.
///
/// `acc[t, n] = sum_k (q[t, k] - z[t]) * w[n, k]`
///
/// These are the sums of int8_linear, which are added and cut up without an error: those of a
/// weight whose columns lie on several processes are the sum of theirs. rescale_product makes
/// numbers of them.
///
/// @param input The integers `q`, `[..., K]`; int8 or uint8. Any strides; what is not contiguous is
///     copied first. K is at most 131071, or 65536 for uint8 or with a zero point.
/// @param weight The integers `w`, `[N, K]`, int8, contiguous.
/// @param input_zero_point `z`: one for all, `[]` or `[1]`, or one for each token, `[...]` or
///     `[..., 1]`; of any integer dtype; std::nullopt stands for 0. A value that the dtype of
///     `input` does not hold counts as the nearest one.
/// @param weight_sum `weight.sum(1, dtype=torch.int32)`, `[N]`; needed with a zero point. If it is
///     std::nullopt, each call computes it.
/// @return `[..., N]`, int32, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its zero points.
inline at::Tensor int8_product(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& input_zero_point = std::nullopt,
                               const std::optional<at::Tensor>& weight_sum = std::nullopt) {
  return api::call<at::Tensor, "int8_product">(input, weight, input_zero_point, weight_sum);
}

/// Scale the sums of a product of integers back to numbers: the last step of `int8_linear`.
///
/// `y[t, n] = acc[t, n] * sw[n] * s[t] + bias[n]`
///
/// `rescale_product(int8_product(q, w), s, sw, bias)` has the bits of `int8_linear(q, w, s, sw,
/// bias)`.
///
/// @param input The sums `acc`, `[..., N]`, int32. Any strides; what is not contiguous is copied
///     first.
/// @param input_scale `s`: one for all, `[]` or `[1]`, or one for each token, `[...]` or `[...,
///     1]`; float32 (float64 for a float64 result).
/// @param weight_scale `sw`, `[N]`, of the dtype of `input_scale`.
/// @param bias `[N]`, of that dtype or of the result's; std::nullopt adds no bias.
/// @param dtype The dtype of the result: float32, float64, float16 or bfloat16.
/// @return `[..., N]`, of `dtype`, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap over anything but the
///     input and its scales.
inline at::Tensor rescale_product(const at::Tensor& input, const at::Tensor& input_scale,
                                  const at::Tensor& weight_scale,
                                  const std::optional<at::Tensor>& bias = std::nullopt,
                                  at::ScalarType dtype = at::kFloat) {
  return api::call<at::Tensor, "rescale_product">(input, input_scale, weight_scale, bias, dtype);
}

}  // namespace baraquant
