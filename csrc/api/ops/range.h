// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
/// @file
/// Scales and zero points from the range of the data.
#pragma once

#include "call.h"

namespace baraquant {

/// Choose one scale and zero point from the range of the whole tensor.
///
/// `s = max |x| / (quant_max - z)` with `z = (quant_min + quant_max + 1) // 2`; asymmetric: `s =
/// (xmax - xmin) / (quant_max - quant_min)` and `z = quant_min - rint(xmin / s)`, where `xmin =
/// min(0, min x)` and `xmax = max(0, max x)` of the tensor
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The scale, `[]`, float32 (float64 for a float64 input), and the zero point, int32, with
///     the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor> choose_qparams_per_tensor(const at::Tensor& input,
                                                                    int64_t quant_min = -128,
                                                                    int64_t quant_max = 127,
                                                                    bool symmetric = true) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "choose_qparams_per_tensor">(
      input, quant_min, quant_max, symmetric);
}

/// Choose a scale and zero point for each index of `axis`.
///
/// `s[c] = max |x| / (quant_max - z)` with `z = (quant_min + quant_max + 1) // 2`; asymmetric:
/// `s[c] = (xmax - xmin) / (quant_max - quant_min)` and `z[c] = quant_min - rint(xmin / s[c])`,
/// where `xmin = min(0, min x)` and `xmax = max(0, max x)` of the channel
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The scale, `[C]`, for the `C` indices of `axis`, float32 (float64 for a float64 input),
///     and the zero point, int32, with the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor> choose_qparams_per_channel(const at::Tensor& input,
                                                                     int64_t axis,
                                                                     int64_t quant_min = -128,
                                                                     int64_t quant_max = 127,
                                                                     bool symmetric = true) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "choose_qparams_per_channel">(
      input, axis, quant_min, quant_max, symmetric);
}

/// Choose a scale and zero point for each vector along the last dimension.
///
/// `s[t] = max |x| / (quant_max - z)` with `z = (quant_min + quant_max + 1) // 2`; asymmetric:
/// `s[t] = (xmax - xmin) / (quant_max - quant_min)` and `z[t] = quant_min - rint(xmin / s[t])`,
/// where `xmin = min(0, min x)` and `xmax = max(0, max x)` of the token
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The scale, `[..., 1]`, float32 (float64 for a float64 input), and the zero point, int32,
///     with the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor> choose_qparams_per_token(const at::Tensor& input,
                                                                   int64_t quant_min = -128,
                                                                   int64_t quant_max = 127,
                                                                   bool symmetric = true) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "choose_qparams_per_token">(
      input, quant_min, quant_max, symmetric);
}

/// Choose a scale and zero point for each run of `group_size` elements along `axis`.
///
/// `s[g] = max |x| / (quant_max - z)` with `z = (quant_min + quant_max + 1) // 2`; asymmetric:
/// `s[g] = (xmax - xmin) / (quant_max - quant_min)` and `z[g] = quant_min - rint(xmin / s[g])`,
/// where `xmin = min(0, min x)` and `xmax = max(0, max x)` of the group
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The scale, `[..., G, ...]`, where `G = ceil(n / group_size)` for the `n` along `axis`,
///     float32 (float64 for a float64 input), and the zero point, int32, with the shape of the
///     scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor> choose_qparams_per_group(
    const at::Tensor& input, c10::SymInt group_size, int64_t axis = -1, int64_t quant_min = -128,
    int64_t quant_max = 127, bool symmetric = true) {
  return api::call<std::tuple<at::Tensor, at::Tensor>, "choose_qparams_per_group">(
      input, std::move(group_size), axis, quant_min, quant_max, symmetric);
}

/// Quantize `input` with one scale, chosen from the range of the whole tensor.
///
/// `q = clamp(rint(x / s) + z, quant_min, quant_max)` with the `s` and `z` of
/// choose_qparams_per_tensor
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of `input` and of `dtype`. The scale, `[]`, float32
///     (float64 for a float64 input), and the zero point, int32, with the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamic_range_quantize_per_tensor(
    const at::Tensor& input, int64_t quant_min = -128, int64_t quant_max = 127,
    bool symmetric = true, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "dynamic_range_quantize_per_tensor">(input, quant_min, quant_max, symmetric,
                                                        dtype);
}

/// Quantize `input` with a scale for each index of `axis`, chosen from the channel's range.
///
/// `q = clamp(rint(x / s[c]) + z[c], quant_min, quant_max)` with the `s` and `z` of
/// choose_qparams_per_channel
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of `input` and of `dtype`. The scale, `[C]`, for the `C`
///     indices of `axis`, float32 (float64 for a float64 input), and the zero point, int32, with
///     the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamic_range_quantize_per_channel(
    const at::Tensor& input, int64_t axis, int64_t quant_min = -128, int64_t quant_max = 127,
    bool symmetric = true, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "dynamic_range_quantize_per_channel">(input, axis, quant_min, quant_max,
                                                         symmetric, dtype);
}

/// Quantize each vector along the last dimension with a scale chosen from its own range.
///
/// `q = clamp(rint(x / s[t]) + z[t], quant_min, quant_max)` with the `s` and `z` of
/// choose_qparams_per_token
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of `input` and of `dtype`. The scale, `[..., 1]`, float32
///     (float64 for a float64 input), and the zero point, int32, with the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamic_range_quantize_per_token(
    const at::Tensor& input, int64_t quant_min = -128, int64_t quant_max = 127,
    bool symmetric = true, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "dynamic_range_quantize_per_token">(input, quant_min, quant_max, symmetric,
                                                       dtype);
}

/// Quantize each run of `group_size` elements along `axis` with a scale from its own range.
///
/// `q = clamp(rint(x / s[g]) + z[g], quant_min, quant_max)` with the `s` and `z` of
/// choose_qparams_per_group
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @param dtype int8 or uint8, which the range has to fit.
/// @return The integers, with the shape of `input` and of `dtype`. The scale, `[..., G, ...]`,
///     where `G = ceil(n / group_size)` for the `n` along `axis`, float32 (float64 for a float64
///     input), and the zero point, int32, with the shape of the scale.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamic_range_quantize_per_group(
    const at::Tensor& input, c10::SymInt group_size, int64_t axis = -1, int64_t quant_min = -128,
    int64_t quant_max = 127, bool symmetric = true, at::ScalarType dtype = at::kChar) {
  return api::call<std::tuple<at::Tensor, at::Tensor, at::Tensor>,
                   "dynamic_range_quantize_per_group">(input, std::move(group_size), axis,
                                                       quant_min, quant_max, symmetric, dtype);
}

/// Fake-quantize `input` with one scale, chosen from the range of the whole tensor.
///
/// `y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s` with the `s` and `z` of
/// choose_qparams_per_tensor
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dynamic_fake_quantize_per_tensor(const at::Tensor& input,
                                                   int64_t quant_min = -128,
                                                   int64_t quant_max = 127, bool symmetric = true) {
  return api::call<at::Tensor, "dynamic_fake_quantize_per_tensor">(input, quant_min, quant_max,
                                                                   symmetric);
}

/// Fake-quantize `input` with a scale for each index of `axis`, from the channel's range.
///
/// `y = (clamp(rint(x / s[c]) + z[c], quant_min, quant_max) - z[c]) * s[c]` with the `s` and `z` of
/// choose_qparams_per_channel
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param axis The dimension of the channels; a negative one counts from the end.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dynamic_fake_quantize_per_channel(const at::Tensor& input, int64_t axis,
                                                    int64_t quant_min = -128,
                                                    int64_t quant_max = 127,
                                                    bool symmetric = true) {
  return api::call<at::Tensor, "dynamic_fake_quantize_per_channel">(input, axis, quant_min,
                                                                    quant_max, symmetric);
}

/// Fake-quantize each vector along the last dimension with a scale from its own range.
///
/// `y = (clamp(rint(x / s[t]) + z[t], quant_min, quant_max) - z[t]) * s[t]` with the `s` and `z` of
/// choose_qparams_per_token
///
/// @param input `[..., D]`; float32, float64, float16 or bfloat16.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError `input` has no dimension.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dynamic_fake_quantize_per_token(const at::Tensor& input, int64_t quant_min = -128,
                                                  int64_t quant_max = 127, bool symmetric = true) {
  return api::call<at::Tensor, "dynamic_fake_quantize_per_token">(input, quant_min, quant_max,
                                                                  symmetric);
}

/// Fake-quantize each run of `group_size` elements along `axis` with a scale of its own.
///
/// `y = (clamp(rint(x / s[g]) + z[g], quant_min, quant_max) - z[g]) * s[g]` with the `s` and `z` of
/// choose_qparams_per_group
///
/// @param input Any shape; float32, float64, float16 or bfloat16.
/// @param group_size The number of neighbours that share a scale; the last group may be shorter.
/// @param axis The dimension along which the groups lie.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps `[min(0, min x),
///     max(0, max x)]` to `[quant_min, quant_max]`.
/// @return The rounded numbers, with the shape and the dtype of `input`.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device, or a gradient that has no formula.
inline at::Tensor dynamic_fake_quantize_per_group(const at::Tensor& input, c10::SymInt group_size,
                                                  int64_t axis = -1, int64_t quant_min = -128,
                                                  int64_t quant_max = 127, bool symmetric = true) {
  return api::call<at::Tensor, "dynamic_fake_quantize_per_group">(
      input, std::move(group_size), axis, quant_min, quant_max, symmetric);
}

/// Update a running minimum and maximum with those of `input`, in place.
///
/// `min_val = min(min_val, min x)` and `max_val = max(max_val, max x)`; with an averaging constant
/// `c`: `min_val += c * (min x - min_val)` and `max_val += c * (max x - max_val)`
///
/// A batch with a NaN or an infinity is ignored: the range stays as it was. With an `axis` this is
/// decided for each channel separately.
///
/// @param input Any shape; float32, float64, float16 or bfloat16. An empty one changes nothing.
/// @param min_val `[]` or `[1]`, or `[C]` for the `C` indices of `axis`; float32 (float64 for a
///     float64 input), contiguous. Start with inf. If an end is not finite, or `min_val > max_val`,
///     no data was seen yet, and the range becomes that of `input`. Changed in place.
/// @param max_val Like `min_val`, another tensor. Start with -inf. Changed in place.
/// @param axis The dimension of the channels, each of which has its own range. std::nullopt: one
///     range for the whole tensor.
/// @param averaging_constant The weight of a new range in a moving average, in (0, 1]; 1 keeps the
///     new range alone. std::nullopt keeps the minimum and the maximum of all data.
/// @param skipped_batches int64, `[]` or `[1]`: it is incremented in place, by 1 for each batch
///     that at least one range ignored. std::nullopt does not count.
/// @return Nothing; `min_val` and `max_val` are changed in place.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap, whose samples cannot
///     share a tensor that changes in place.
inline void observe_min_max_(const at::Tensor& input, const at::Tensor& min_val,
                             const at::Tensor& max_val, std::optional<int64_t> axis = std::nullopt,
                             std::optional<double> averaging_constant = std::nullopt,
                             const std::optional<at::Tensor>& skipped_batches = std::nullopt) {
  return api::call<void, "observe_min_max_">(input, min_val, max_val, axis, averaging_constant,
                                             skipped_batches);
}

/// Update a running range, choose scale and zero point from it, and fake-quantize `input`.
///
/// `y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s` with the `s` and `z` that
/// choose_qparams_per_tensor gives for the data `{min_val, max_val}`
///
/// A tensor on the device switches each half off, without a wait for the device and without
/// recompilation. If nothing is observed, `scale` and `zero_point` are used as they are.
///
/// A batch with a NaN or an infinity is ignored: the range stays as it was. The scale is then that
/// of this range, or the given one before the first finite batch. With an `axis` this is decided
/// for each channel separately.
///
/// @param input Any shape; float32, float64, float16 or bfloat16. An empty one changes nothing.
/// @param min_val `[]` or `[1]`, or `[C]` for the `C` indices of `axis`; float32 (float64 for a
///     float64 input), contiguous. Start with inf. If an end is not finite, or `min_val > max_val`,
///     no data was seen yet, and the range becomes that of `input`. Changed in place.
/// @param max_val Like `min_val`, another tensor. Start with -inf. Changed in place.
/// @param scale Like `min_val`. Start with 1. Changed in place.
/// @param zero_point Like `min_val`, but int32. Start with 0. Changed in place.
/// @param observer_enabled One element, uint8 or bool. If it is 0, the four tensors above are not
///     changed, and no batch is counted.
/// @param fake_quant_enabled One element, uint8 or bool. If it is 0, the result is a copy of
///     `input`.
/// @param axis The dimension of the channels, each of which has its own range and scale.
///     std::nullopt: one range and one scale for the whole tensor.
/// @param quant_min The smallest integer.
/// @param quant_max The largest integer.
/// @param symmetric true maps 0 to the middle of the integers' range. false maps the running range,
///     extended to include 0, to `[quant_min, quant_max]`.
/// @param averaging_constant The weight of a new range in a moving average, in (0, 1]; 1 keeps the
///     new range alone. std::nullopt keeps the minimum and the maximum of all data.
/// @param skipped_batches int64, `[]` or `[1]`: it is incremented in place, by 1 for each batch
///     that at least one range ignored. std::nullopt does not count.
/// @return The rounded numbers, with the shape and the dtype of `input`. A NaN in it stays NaN, an
///     infinity gives an end of the range.
/// @throws c10::ValueError A shape, a device, a range or a number that does not fit.
/// @throws c10::TypeError A dtype or a layout (sparse, quantized, complex) that it does not take.
/// @throws c10::IndexError An `axis` that `input` does not have.
/// @throws c10::NotImplementedError No kernel for the device; torch.vmap, whose samples cannot
///     share a tensor that changes in place.
inline at::Tensor observe_fake_quantize(
    const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
    const at::Tensor& scale, const at::Tensor& zero_point, const at::Tensor& observer_enabled,
    const at::Tensor& fake_quant_enabled, std::optional<int64_t> axis = std::nullopt,
    int64_t quant_min = -128, int64_t quant_max = 127, bool symmetric = true,
    std::optional<double> averaging_constant = std::nullopt,
    const std::optional<at::Tensor>& skipped_batches = std::nullopt) {
  return api::call<at::Tensor, "observe_fake_quantize">(
      input, min_val, max_val, scale, zero_point, observer_enabled, fake_quant_enabled, axis,
      quant_min, quant_max, symmetric, averaging_constant, skipped_batches);
}

}  // namespace baraquant
