// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Norms, activations and a rotation of vectors, and the same quantized.
#pragma once

#include "call.h"

namespace baraquant {

/// Divide each vector along the last dimension by its root mean square.
///
/// `y = x / sqrt(mean(x^2) + eps) * weight` over the last dimension
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param weight `[D]`, of the dtype of `input` or of the scale; std::nullopt stands for ones.
/// @param eps What is added to the mean square; at least 0, and finite when it is rounded to the
///     dtype of the computation.
/// @return The result, with the shape and the dtype of `input`, contiguous; with a residual also
///     the sum `input + residual`.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta.
inline at::Tensor rms_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                           double eps) {
  return api::call<at::Tensor, "rms_norm">(input, weight, eps);
}

/// The same of input + residual, which is returned as well, after the other results.
inline std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& input,
                                                   const std::optional<at::Tensor>& weight,
                                                   double eps, const at::Tensor& residual) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "rms_norm", "residual">(input, weight, eps,
                                                                               residual);
}

/// Divide each vector by its root mean square, and quantize it.
///
/// `y = x / sqrt(mean(x^2) + eps) * weight` over the last dimension, and `q = clamp(rint(y / s[t])
/// + z[t], quant_min, quant_max)`
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param weight `[D]`, of the dtype of `input` or of the scale; std::nullopt stands for ones.
/// @param eps What is added to the mean square; at least 0, and finite when it is rounded to the
///     dtype of the computation.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min y),
///     max(0, max y)]` to `[quant_min, quant_max]`.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of the input and of `dtype`, contiguous. The scale, `[...,
///     1]`, float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale. With a residual also the sum `input + residual`.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta. Or an
///     argument requires grad.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_quantize_per_token(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, double eps,
    bool symmetric = true, int64_t quant_min = -128, int64_t quant_max = 127,
    at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "rms_norm_quantize_per_token">(
      input, weight, eps, symmetric, quant_min, quant_max, dtype);
}

/// The same of input + residual, which is returned as well, after the other results.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> rms_norm_quantize_per_token(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, double eps,
    const at::Tensor& residual, bool symmetric = true, int64_t quant_min = -128,
    int64_t quant_max = 127, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>,
                   "rms_norm_quantize_per_token", "residual">(
      input, weight, eps, residual, symmetric, quant_min, quant_max, dtype);
}

/// Shift and scale each vector along the last dimension to mean 0 and variance 1.
///
/// `y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias` with `m = mean(x)`, over the last
/// dimension
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param weight `[D]`, of the dtype of `input` or of the scale; std::nullopt stands for ones.
/// @param bias `[D]`, like `weight`; std::nullopt stands for zeros.
/// @param eps What is added to the mean square; at least 0, and finite when it is rounded to the
///     dtype of the computation.
/// @return The result, with the shape and the dtype of `input`, contiguous; with a residual also
///     the sum `input + residual`.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta.
inline at::Tensor layer_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, double eps) {
  return api::call<at::Tensor, "layer_norm">(input, weight, bias, eps);
}

/// The same of input + residual, which is returned as well, after the other results.
inline std::tuple<at::Tensor, at::Tensor> layer_norm(const at::Tensor& input,
                                                     const std::optional<at::Tensor>& weight,
                                                     const std::optional<at::Tensor>& bias,
                                                     double eps, const at::Tensor& residual) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "layer_norm", "residual">(
      input, weight, bias, eps, residual);
}

/// Shift and scale each vector to mean 0 and variance 1, and quantize it.
///
/// `y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias` with `m = mean(x)`, over the last
/// dimension, and `q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)`
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param weight `[D]`, of the dtype of `input` or of the scale; std::nullopt stands for ones.
/// @param bias `[D]`, like `weight`; std::nullopt stands for zeros.
/// @param eps What is added to the mean square; at least 0, and finite when it is rounded to the
///     dtype of the computation.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min y),
///     max(0, max y)]` to `[quant_min, quant_max]`.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of the input and of `dtype`, contiguous. The scale, `[...,
///     1]`, float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale. With a residual also the sum `input + residual`.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta. Or an
///     argument requires grad.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_quantize_per_token(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps, bool symmetric = true,
    int64_t quant_min = -128, int64_t quant_max = 127, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "layer_norm_quantize_per_token">(
      input, weight, bias, eps, symmetric, quant_min, quant_max, dtype);
}

/// The same of input + residual, which is returned as well, after the other results.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer_norm_quantize_per_token(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps, const at::Tensor& residual,
    bool symmetric = true, int64_t quant_min = -128, int64_t quant_max = 127,
    at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>,
                   "layer_norm_quantize_per_token", "residual">(
      input, weight, bias, eps, residual, symmetric, quant_min, quant_max, dtype);
}

/// Multiply `up` by the SiLU of `gate`: the activation of a gated feed-forward layer.
///
/// `y = gate / (1 + exp(-gate)) * up`
///
/// @param gate `[..., D]`; float32, float16 or bfloat16. It may be a part of a wider tensor, as
///     `x.chunk(2, -1)` gives it.
/// @param up Like `gate`, of the same shape and dtype.
/// @return The product, with the shape and the dtype of `gate`, contiguous.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta.
inline at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  return api::call<at::Tensor, "silu_mul">(gate, up);
}

/// Multiply `up` by the SiLU of `gate`, and quantize each vector of the product.
///
/// `y = gate / (1 + exp(-gate)) * up`, and `q = clamp(rint(y / s[t]) + z[t], quant_min, quant_max)`
///
/// @param gate `[..., D]`; float32, float16 or bfloat16. It may be a part of a wider tensor, as
///     `x.chunk(2, -1)` gives it.
/// @param up Like `gate`, of the same shape and dtype.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min y),
///     max(0, max y)]` to `[quant_min, quant_max]`.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of the input and of `dtype`, contiguous. The scale, `[...,
///     1]`, float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta. Or an
///     argument requires grad.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> silu_mul_quantize_per_token(
    const at::Tensor& gate, const at::Tensor& up, bool symmetric = true, int64_t quant_min = -128,
    int64_t quant_max = 127, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "silu_mul_quantize_per_token">(
      gate, up, symmetric, quant_min, quant_max, dtype);
}

/// Compute the Gaussian error linear unit.
///
/// `y = x * Phi(x)`, with `Phi` the distribution function of the normal distribution; or, by tanh,
/// `y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`
///
/// @param input `[..., D]`; float32, float16 or bfloat16.
/// @param approximate "none" or "tanh".
/// @return The result, with the shape and the dtype of `input`, contiguous.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta.
inline at::Tensor gelu(const at::Tensor& input, std::string_view approximate = "none") {
  return api::call<at::Tensor, "gelu">(input, approximate);
}

/// Compute the Gaussian error linear unit, and quantize each vector of it.
///
/// `y = x * Phi(x)`, with `Phi` the distribution function of the normal distribution; or, by tanh,
/// `y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`; and `q = clamp(rint(y / s[t]) +
/// z[t], quant_min, quant_max)`
///
/// @param input `[..., D]`; float32, float16 or bfloat16.
/// @param approximate "none" or "tanh".
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min y),
///     max(0, max y)]` to `[quant_min, quant_max]`.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of the input and of `dtype`, contiguous. The scale, `[...,
///     1]`, float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta. Or an
///     argument requires grad.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> gelu_quantize_per_token(
    const at::Tensor& input, std::string_view approximate = "none", bool symmetric = true,
    int64_t quant_min = -128, int64_t quant_max = 127, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "gelu_quantize_per_token">(
      input, approximate, symmetric, quant_min, quant_max, dtype);
}

/// Rotate each `block` neighbours along the last dimension by a Hadamard matrix.
///
/// `y = H x / sqrt(block)` for each `block` neighbours along the last dimension, with Sylvester's
/// Hadamard matrix `H`: `H[i, j]` is 1 or -1 as `i & j` has an even or odd number of bits
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param block A power of two that divides `D`, at most 32768.
/// @return The rotated vectors, with the shape and the dtype of `input`, contiguous.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta.
inline at::Tensor hadamard(const at::Tensor& input, int64_t block) {
  return api::call<at::Tensor, "hadamard">(input, block);
}

/// Rotate each `block` neighbours by a Hadamard matrix, and quantize each vector.
///
/// `y = H x / sqrt(block)` for each `block` neighbours along the last dimension, with Sylvester's
/// Hadamard matrix `H`: `H[i, j]` is 1 or -1 as `i & j` has an even or odd number of bits; and `q =
/// clamp(rint(y / s[t]) + z[t], quant_min, quant_max)`
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param block A power of two that divides `D`, at most 32768.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min y),
///     max(0, max y)]` to `[quant_min, quant_max]`.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of the input and of `dtype`, contiguous. The scale, `[...,
///     1]`, float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale.
/// @throws c10::ValueError A shape, a device or a number does not fit.
/// @throws c10::TypeError A tensor has an unsupported dtype.
/// @throws c10::NotImplementedError The input is on a device other than CPU, CUDA and Meta. Or an
///     argument requires grad.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> hadamard_quantize_per_token(
    const at::Tensor& input, int64_t block, bool symmetric = true, int64_t quant_min = -128,
    int64_t quant_max = 127, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>, "hadamard_quantize_per_token">(
      input, block, symmetric, quant_min, quant_max, dtype);
}

}  // namespace baraquant
