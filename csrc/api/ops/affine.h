// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Quantize, dequantize and fake_quantize with given scales and zero points.
#pragma once

#include "call.h"

namespace baraquant {

/// Quantize `input` with one scale for the whole tensor.
///
/// `q = clamp(rint(x / s) + z, quant_min, quant_max)`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[]` or `[1]`, float32 (float64 for a float64 input); or a number > 0.
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0. It may be
///     an int in the range (for dequantize: an int of 32 bits). If `scale` is a number, it must be
///     an int or std::nullopt.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8, uint8, or a floating dtype (the differentiable form).
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits.
/// @return The integers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                      const std::optional<at::Tensor>& zero_point,
                                      int64_t quant_min = -128, int64_t quant_max = 127,
                                      at::ScalarType dtype = at::kChar,
                                      std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_tensor">(input, scale, zero_point, quant_min,
                                                      quant_max, dtype, save_mask);
}

/// The same; the scale is a tensor and the zero point a number.
inline at::Tensor quantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                      int64_t zero_point, int64_t quant_min = -128,
                                      int64_t quant_max = 127, at::ScalarType dtype = at::kChar,
                                      std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_tensor", "scale_tensor">(
      input, scale, zero_point, quant_min, quant_max, dtype, save_mask);
}

/// The same; the scale is a number and the zero point a number.
inline at::Tensor quantize_per_tensor(const at::Tensor& input, double scale,
                                      std::optional<int64_t> zero_point, int64_t quant_min = -128,
                                      int64_t quant_max = 127, at::ScalarType dtype = at::kChar,
                                      std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_tensor", "number">(input, scale, zero_point, quant_min,
                                                                quant_max, dtype, save_mask);
}

/// Quantize `input` with a scale for each index of `axis`.
///
/// `q = clamp(rint(x / s[c]) + z[c], quant_min, quant_max)`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8, uint8, or a floating dtype (the differentiable form).
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits.
/// @return The integers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_channel(const at::Tensor& input, const at::Tensor& scale,
                                       const std::optional<at::Tensor>& zero_point, int64_t axis,
                                       int64_t quant_min = -128, int64_t quant_max = 127,
                                       at::ScalarType dtype = at::kChar,
                                       std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_channel">(input, scale, zero_point, axis, quant_min,
                                                       quant_max, dtype, save_mask);
}

/// Quantize `input` with a scale for each vector along the last dimension.
///
/// `q = clamp(rint(x / s[t]) + z[t], quant_min, quant_max)`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 (float64 for a float64
///     input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8, uint8, or a floating dtype (the differentiable form).
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits.
/// @return The integers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_token(const at::Tensor& input, const at::Tensor& scale,
                                     const std::optional<at::Tensor>& zero_point,
                                     int64_t quant_min = -128, int64_t quant_max = 127,
                                     at::ScalarType dtype = at::kChar,
                                     std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_token">(input, scale, zero_point, quant_min, quant_max,
                                                     dtype, save_mask);
}

/// Quantize `input` with a scale for each run of `group_size` elements along `axis`.
///
/// `q = clamp(rint(x / s[g]) + z[g], quant_min, quant_max)`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8, uint8, or a floating dtype (the differentiable form).
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits.
/// @return The integers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_group(const at::Tensor& input, const at::Tensor& scale,
                                     const std::optional<at::Tensor>& zero_point,
                                     c10::SymInt group_size, int64_t axis = -1,
                                     int64_t quant_min = -128, int64_t quant_max = 127,
                                     at::ScalarType dtype = at::kChar,
                                     std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "quantize_per_group">(input, scale, zero_point,
                                                     std::move(group_size), axis, quant_min,
                                                     quant_max, dtype, save_mask);
}

/// Dequantize `input` with one scale for the whole tensor.
///
/// `y = (q - z) * s`
///
/// @param input Any shape; int8, uint8, or floating (the differentiable form).
/// @param scale `[]` or `[1]`, float32 or float64, which is the dtype of the computation; or a
///     number > 0.
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0. It may be
///     an int in the range (for dequantize: an int of 32 bits). If `scale` is a number, it must be
///     an int or std::nullopt.
/// @param dtype A floating dtype; std::nullopt stands for the dtype of the computation.
/// @return The numbers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                        const std::optional<at::Tensor>& zero_point,
                                        std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_tensor">(input, scale, zero_point, dtype);
}

/// The same; the scale is a tensor and the zero point a number.
inline at::Tensor dequantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                        int64_t zero_point,
                                        std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_tensor", "scale_tensor">(input, scale, zero_point,
                                                                        dtype);
}

/// The same; the scale is a number and the zero point a number.
inline at::Tensor dequantize_per_tensor(const at::Tensor& input, double scale,
                                        std::optional<int64_t> zero_point,
                                        std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_tensor", "number">(input, scale, zero_point, dtype);
}

/// Dequantize `input` with a scale for each index of `axis`.
///
/// `y = (q - z[c]) * s[c]`
///
/// @param input Any shape; int8, uint8, or floating (the differentiable form).
/// @param scale `[C]`, for the `C` indices of `axis`, float32 or float64, which is the dtype of the
///     computation.
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param dtype A floating dtype; std::nullopt stands for the dtype of the computation.
/// @return The numbers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_channel(const at::Tensor& input, const at::Tensor& scale,
                                         const std::optional<at::Tensor>& zero_point, int64_t axis,
                                         std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_channel">(input, scale, zero_point, axis, dtype);
}

/// Dequantize `input` with a scale for each vector along the last dimension.
///
/// `y = (q - z[t]) * s[t]`
///
/// @param input Any shape; int8, uint8, or floating (the differentiable form).
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 or float64, which is the
///     dtype of the computation.
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param dtype A floating dtype; std::nullopt stands for the dtype of the computation.
/// @return The numbers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_token(const at::Tensor& input, const at::Tensor& scale,
                                       const std::optional<at::Tensor>& zero_point,
                                       std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_token">(input, scale, zero_point, dtype);
}

/// Dequantize `input` with a scale for each run of `group_size` elements along `axis`.
///
/// `y = (q - z[g]) * s[g]`
///
/// @param input Any shape; int8, uint8, or floating (the differentiable form).
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     or float64, which is the dtype of the computation.
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param dtype A floating dtype; std::nullopt stands for the dtype of the computation.
/// @return The numbers, with the shape of `input` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_group(const at::Tensor& input, const at::Tensor& scale,
                                       const std::optional<at::Tensor>& zero_point,
                                       c10::SymInt group_size, int64_t axis = -1,
                                       std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_group">(input, scale, zero_point,
                                                       std::move(group_size), axis, dtype);
}

/// Fake-quantize `input` with one scale for the whole tensor.
///
/// `y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[]` or `[1]`, float32 (float64 for a float64 input); or a number > 0.
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0. It may be
///     an int in the range (for dequantize: an int of 32 bits). If `scale` is a number, it must be
///     an int or std::nullopt.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits. If the scale or the zero point is learned, the input is always kept.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                           const std::optional<at::Tensor>& zero_point,
                                           int64_t quant_min = -128, int64_t quant_max = 127,
                                           std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_tensor">(input, scale, zero_point, quant_min,
                                                           quant_max, save_mask);
}

/// The same; the scale is a tensor and the zero point a number.
inline at::Tensor fake_quantize_per_tensor(const at::Tensor& input, const at::Tensor& scale,
                                           int64_t zero_point, int64_t quant_min = -128,
                                           int64_t quant_max = 127,
                                           std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_tensor", "scale_tensor">(
      input, scale, zero_point, quant_min, quant_max, save_mask);
}

/// The same; the scale is a number and the zero point a number.
inline at::Tensor fake_quantize_per_tensor(const at::Tensor& input, double scale,
                                           std::optional<int64_t> zero_point,
                                           int64_t quant_min = -128, int64_t quant_max = 127,
                                           std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_tensor", "number">(
      input, scale, zero_point, quant_min, quant_max, save_mask);
}

/// Fake-quantize `input` with a scale for each index of `axis`.
///
/// `y = (clamp(rint(x / s[c]) + z[c], quant_min, quant_max) - z[c]) * s[c]`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits. If the scale or the zero point is learned, the input is always kept.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_channel(const at::Tensor& input, const at::Tensor& scale,
                                            const std::optional<at::Tensor>& zero_point,
                                            int64_t axis, int64_t quant_min = -128,
                                            int64_t quant_max = 127,
                                            std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_channel">(input, scale, zero_point, axis,
                                                            quant_min, quant_max, save_mask);
}

/// Fake-quantize `input` with a scale for each vector along the last dimension.
///
/// `y = (clamp(rint(x / s[t]) + z[t], quant_min, quant_max) - z[t]) * s[t]`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 (float64 for a float64
///     input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits. If the scale or the zero point is learned, the input is always kept.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_token(const at::Tensor& input, const at::Tensor& scale,
                                          const std::optional<at::Tensor>& zero_point,
                                          int64_t quant_min = -128, int64_t quant_max = 127,
                                          std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_token">(input, scale, zero_point, quant_min,
                                                          quant_max, save_mask);
}

/// Fake-quantize `input` with a scale for each run of `group_size` elements along `axis`.
///
/// `y = (clamp(rint(x / s[g]) + z[g], quant_min, quant_max) - z[g]) * s[g]`
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param save_mask What is kept for the backward pass. true: one bit per element. false: the
///     input. std::nullopt: the input if it is a leaf (a parameter) or a view of one, else the
///     bits. If the scale or the zero point is learned, the input is always kept.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_group(const at::Tensor& input, const at::Tensor& scale,
                                          const std::optional<at::Tensor>& zero_point,
                                          c10::SymInt group_size, int64_t axis = -1,
                                          int64_t quant_min = -128, int64_t quant_max = 127,
                                          std::optional<bool> save_mask = std::nullopt) {
  return api::call<at::Tensor, "fake_quantize_per_group">(
      input, scale, zero_point, std::move(group_size), axis, quant_min, quant_max, save_mask);
}

}  // namespace baraquant
