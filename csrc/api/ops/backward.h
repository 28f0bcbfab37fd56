// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// The gradients of the affine ops, for programs that call them by hand.
#pragma once

#include "call.h"

namespace baraquant::backward {

/// Gradient of quantize_per_tensor in its input.
///
/// `dx = grad / s where quant_min <= rint(x / s) + z <= quant_max, else 0`
///
/// @param grad Shaped like `input`, floating: the gradient of the quantized values.
/// @param input The tensor that was quantized, floating, of any shape.
/// @param scale `[]` or `[1]`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_tensor_backward(const at::Tensor& grad, const at::Tensor& input,
                                               const at::Tensor& scale,
                                               const std::optional<at::Tensor>& zero_point,
                                               int64_t quant_min = -128, int64_t quant_max = 127) {
  return api::call<at::Tensor, "quantize_per_tensor_backward">(grad, input, scale, zero_point,
                                                               quant_min, quant_max);
}

/// Gradient of quantize_per_channel in its input.
///
/// `dx = grad / s[c] where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, floating: the gradient of the quantized values.
/// @param input The tensor that was quantized, floating, of any shape.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_channel_backward(const at::Tensor& grad, const at::Tensor& input,
                                                const at::Tensor& scale,
                                                const std::optional<at::Tensor>& zero_point,
                                                int64_t axis, int64_t quant_min = -128,
                                                int64_t quant_max = 127) {
  return api::call<at::Tensor, "quantize_per_channel_backward">(grad, input, scale, zero_point,
                                                                axis, quant_min, quant_max);
}

/// Gradient of quantize_per_token in its input.
///
/// `dx = grad / s[t] where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, floating: the gradient of the quantized values.
/// @param input The tensor that was quantized, floating, of any shape.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 (float64 for a float64
///     input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_token_backward(const at::Tensor& grad, const at::Tensor& input,
                                              const at::Tensor& scale,
                                              const std::optional<at::Tensor>& zero_point,
                                              int64_t quant_min = -128, int64_t quant_max = 127) {
  return api::call<at::Tensor, "quantize_per_token_backward">(grad, input, scale, zero_point,
                                                              quant_min, quant_max);
}

/// Gradient of quantize_per_group in its input.
///
/// `dx = grad / s[g] where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, floating: the gradient of the quantized values.
/// @param input The tensor that was quantized, floating, of any shape.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, any integer dtype; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor quantize_per_group_backward(const at::Tensor& grad, const at::Tensor& input,
                                              const at::Tensor& scale,
                                              const std::optional<at::Tensor>& zero_point,
                                              c10::SymInt group_size, int64_t axis = -1,
                                              int64_t quant_min = -128, int64_t quant_max = 127) {
  return api::call<at::Tensor, "quantize_per_group_backward">(
      grad, input, scale, zero_point, std::move(group_size), axis, quant_min, quant_max);
}

/// Gradient of dequantize_per_tensor in its input.
///
/// `dq = grad * s`
///
/// @param grad Any shape, floating: the gradient of the numbers.
/// @param scale `[]` or `[1]`, float32 or float64, which is the dtype of the computation.
/// @param dtype The dtype of the gradient; std::nullopt stands for that of `grad`.
/// @return The gradient, with the shape of `grad` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_tensor_backward(
    const at::Tensor& grad, const at::Tensor& scale,
    std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_tensor_backward">(grad, scale, dtype);
}

/// Gradient of dequantize_per_channel in its input.
///
/// `dq = grad * s[c]`
///
/// @param grad Any shape, floating: the gradient of the numbers.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 or float64, which is the dtype of the
///     computation.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param dtype The dtype of the gradient; std::nullopt stands for that of `grad`.
/// @return The gradient, with the shape of `grad` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_channel_backward(
    const at::Tensor& grad, const at::Tensor& scale, int64_t axis,
    std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_channel_backward">(grad, scale, axis, dtype);
}

/// Gradient of dequantize_per_token in its input.
///
/// `dq = grad * s[t]`
///
/// @param grad Any shape, floating: the gradient of the numbers.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 or float64, which is the
///     dtype of the computation.
/// @param dtype The dtype of the gradient; std::nullopt stands for that of `grad`.
/// @return The gradient, with the shape of `grad` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_token_backward(
    const at::Tensor& grad, const at::Tensor& scale,
    std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_token_backward">(grad, scale, dtype);
}

/// Gradient of dequantize_per_group in its input.
///
/// `dq = grad * s[g]`
///
/// @param grad Any shape, floating: the gradient of the numbers.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     or float64, which is the dtype of the computation.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param dtype The dtype of the gradient; std::nullopt stands for that of `grad`.
/// @return The gradient, with the shape of `grad` and of `dtype`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dequantize_per_group_backward(
    const at::Tensor& grad, const at::Tensor& scale, c10::SymInt group_size, int64_t axis = -1,
    std::optional<at::ScalarType> dtype = std::nullopt) {
  return api::call<at::Tensor, "dequantize_per_group_backward">(grad, scale, std::move(group_size),
                                                                axis, dtype);
}

/// Gradient of fake_quantize_per_tensor in its input.
///
/// `dx = grad where quant_min <= rint(x / s) + z <= quant_max, else 0`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[]` or `[1]`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_tensor_backward(const at::Tensor& grad, const at::Tensor& input,
                                                    const at::Tensor& scale,
                                                    const std::optional<at::Tensor>& zero_point,
                                                    int64_t quant_min = -128,
                                                    int64_t quant_max = 127) {
  return api::call<at::Tensor, "fake_quantize_per_tensor_backward">(grad, input, scale, zero_point,
                                                                    quant_min, quant_max);
}

/// Gradient of fake_quantize_per_channel in its input.
///
/// `dx = grad where quant_min <= rint(x / s[c]) + z[c] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_channel_backward(const at::Tensor& grad,
                                                     const at::Tensor& input,
                                                     const at::Tensor& scale,
                                                     const std::optional<at::Tensor>& zero_point,
                                                     int64_t axis, int64_t quant_min = -128,
                                                     int64_t quant_max = 127) {
  return api::call<at::Tensor, "fake_quantize_per_channel_backward">(grad, input, scale, zero_point,
                                                                     axis, quant_min, quant_max);
}

/// Gradient of fake_quantize_per_token in its input.
///
/// `dx = grad where quant_min <= rint(x / s[t]) + z[t] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 (float64 for a float64
///     input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_token_backward(const at::Tensor& grad, const at::Tensor& input,
                                                   const at::Tensor& scale,
                                                   const std::optional<at::Tensor>& zero_point,
                                                   int64_t quant_min = -128,
                                                   int64_t quant_max = 127) {
  return api::call<at::Tensor, "fake_quantize_per_token_backward">(grad, input, scale, zero_point,
                                                                   quant_min, quant_max);
}

/// Gradient of fake_quantize_per_group in its input.
///
/// `dx = grad where quant_min <= rint(x / s[g]) + z[g] <= quant_max, else 0`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradient, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor fake_quantize_per_group_backward(const at::Tensor& grad, const at::Tensor& input,
                                                   const at::Tensor& scale,
                                                   const std::optional<at::Tensor>& zero_point,
                                                   c10::SymInt group_size, int64_t axis = -1,
                                                   int64_t quant_min = -128,
                                                   int64_t quant_max = 127) {
  return api::call<at::Tensor, "fake_quantize_per_group_backward">(
      grad, input, scale, zero_point, std::move(group_size), axis, quant_min, quant_max);
}

/// Gradients of fake_quantize_per_tensor in input, scale and zero point.
///
/// `ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))` `dz = sum(0
/// where x is inside the range, else -s * grad)`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[]` or `[1]`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradients of `input`, of `scale` and of `zero_point`, computed in one pass; each has
///     the shape and the dtype of its tensor. For a `zero_point` that is not floating the dtype is
///     that of `scale`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_quantize_per_tensor_backward_qparams(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
    const std::optional<at::Tensor>& zero_point, int64_t quant_min = -128,
    int64_t quant_max = 127) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "fake_quantize_per_tensor_backward_qparams">(grad, input, scale, zero_point,
                                                                quant_min, quant_max);
}

/// Gradients of fake_quantize_per_channel in input, scale and zero point.
///
/// `ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))` `dz = sum(0
/// where x is inside the range, else -s * grad)`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradients of `input`, of `scale` and of `zero_point`, computed in one pass; each has
///     the shape and the dtype of its tensor. For a `zero_point` that is not floating the dtype is
///     that of `scale`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_quantize_per_channel_backward_qparams(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
    const std::optional<at::Tensor>& zero_point, int64_t axis, int64_t quant_min = -128,
    int64_t quant_max = 127) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "fake_quantize_per_channel_backward_qparams">(grad, input, scale, zero_point,
                                                                 axis, quant_min, quant_max);
}

/// Gradients of fake_quantize_per_token in input, scale and zero point.
///
/// `ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))` `dz = sum(0
/// where x is inside the range, else -s * grad)`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[..., 1]` or `[...]`, for a tensor `[..., D]`, float32 (float64 for a float64
///     input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradients of `input`, of `scale` and of `zero_point`, computed in one pass; each has
///     the shape and the dtype of its tensor. For a `zero_point` that is not floating the dtype is
///     that of `scale`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_quantize_per_token_backward_qparams(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
    const std::optional<at::Tensor>& zero_point, int64_t quant_min = -128,
    int64_t quant_max = 127) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "fake_quantize_per_token_backward_qparams">(grad, input, scale, zero_point,
                                                               quant_min, quant_max);
}

/// Gradients of fake_quantize_per_group in input, scale and zero point.
///
/// `ds = sum(grad * (rint(x / s) - x / s where x is inside the range, else q - z))` `dz = sum(0
/// where x is inside the range, else -s * grad)`
///
/// @param grad Shaped like `input`, of its dtype.
/// @param input The tensor that was rounded, floating, of any shape.
/// @param scale `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`, float32
///     (float64 for a float64 input).
/// @param zero_point Shaped like `scale`, integer or floating; std::nullopt stands for 0.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @return The gradients of `input`, of `scale` and of `zero_point`, computed in one pass; each has
///     the shape and the dtype of its tensor. For a `zero_point` that is not floating the dtype is
///     that of `scale`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_quantize_per_group_backward_qparams(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
    const std::optional<at::Tensor>& zero_point, c10::SymInt group_size, int64_t axis = -1,
    int64_t quant_min = -128, int64_t quant_max = 127) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "fake_quantize_per_group_backward_qparams">(
      grad, input, scale, zero_point, std::move(group_size), axis, quant_min, quant_max);
}

}  // namespace baraquant::backward
