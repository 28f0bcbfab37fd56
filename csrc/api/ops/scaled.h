// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Scaled quantization, transposes and random states, for a backward of integers.
#pragma once

#include "call.h"

namespace baraquant {

/// Multiply each column by a factor and quantize each row to int8 with the scale of its data.
///
/// `q, s, _ = dynamic_range_quantize_per_token(C(input) * factor)`, where `C` converts to float32
/// (float64 for a float64 input)
///
/// @param input `[..., N]`; float32, float64, float16 or bfloat16. Any strides; what is not
///     contiguous is copied first.
/// @param factor `[N]`, one for each column; float32 (float64 for a float64 input).
/// @param random std::nullopt rounds to the nearest integer. A state of draw_random, int64 `[2]` on
///     the device of `input`, rounds stochastically.
/// @return The integers, `[..., N]`, int8, contiguous. The scale, `[..., 1]`, of the dtype of
///     `factor`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline std::tuple<at::Tensor, at::Tensor> scaled_quantize_per_token(
    const at::Tensor& input, const at::Tensor& factor,
    const std::optional<at::Tensor>& random = std::nullopt) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "scaled_quantize_per_token">(input, factor,
                                                                                    random);
}

/// Multiply each row by a factor and quantize each column to int8; return the transpose.
///
/// `q, s, _ = dynamic_range_quantize_per_token((C(rows) * factor).T)`, where `rows` is the input as
/// `[M, N]`, `factor` is `[M, 1]`, and `C` converts to float32 (float64 for a float64 input)
///
/// @param input `[..., N]`, seen as `[M, N]`; float32, float64, float16 or bfloat16. Any strides;
///     what is not contiguous is copied first.
/// @param factor one for each row, `[...]` or `[..., 1]`; float32 (float64 for a float64 input).
/// @param random std::nullopt rounds to the nearest integer. A state of draw_random, int64 `[2]` on
///     the device of `input`, rounds stochastically.
/// @return The integers, `[N, M]`, int8, contiguous. The scale, `[N]`, of the dtype of `factor`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline std::tuple<at::Tensor, at::Tensor> scaled_quantize_transposed(
    const at::Tensor& input, const at::Tensor& factor,
    const std::optional<at::Tensor>& random = std::nullopt) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "scaled_quantize_transposed">(input, factor,
                                                                                     random);
}

/// Return the transpose of an int8 matrix as a new, contiguous one.
///
/// `y = input.t().contiguous()`, but fast: products of integers need both matrices with the summed
/// dimension last.
///
/// @param input `[M, N]`, int8. Any strides; what is not contiguous is copied first.
/// @return `[N, M]`, int8, contiguous.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor transpose_int8(const at::Tensor& input) {
  return api::call<at::Tensor, "transpose_int8">(input);
}

/// Draw a state for stochastic rounding from PyTorch's default generator of a device.
///
/// `random = [seed, offset]`: each call gives another one, and so does each replay of a captured
/// CUDA graph. torch.manual_seed makes them repeat.
///
/// @param like A tensor on the device whose generator is used; its values are not read.
/// @param count How many calls will use the state: call number i adds i to its second number.
/// @return A seed and the number of the first call, `[2]`, int64, on that device. Neither the host
///     nor the device waits.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap.
inline at::Tensor draw_random(const at::Tensor& like, int64_t count = 1) {
  return api::call<at::Tensor, "draw_random">(like, count);
}

}  // namespace baraquant
