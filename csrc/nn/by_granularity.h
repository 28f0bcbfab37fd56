// SPDX-License-Identifier: BSD-3-Clause
// The one place that chooses among the ops of a verb by the granularity of a module.
#pragma once

#include <c10/util/accumulate.h>

#include <string>

#include "api/ops.h"

namespace baraquant::nn {

// The op of a verb for the granularity: of the first arguments, its own, the range, and the last one.
#define BARAQUANT_CALL(verb, last, ...)                                                   \
  granularity == "per_tensor"    ? verb##_per_tensor(__VA_ARGS__, low, high, last)        \
  : granularity == "per_channel" ? verb##_per_channel(__VA_ARGS__, axis, low, high, last) \
  : granularity == "per_token"   ? verb##_per_token(__VA_ARGS__, low, high, last)         \
                                 : verb##_per_group(__VA_ARGS__, group_size, axis, low, high, last)

// Which values of an input share a scale, and their range of integers. `granularity` is a valid name.
struct ByGranularity {
  using Maybe = const std::optional<at::Tensor>&;

  std::string granularity;
  int64_t axis;
  int64_t group_size;
  int64_t low, high;

  at::Tensor fake_quantize(const at::Tensor& input, const at::Tensor& scale, Maybe zero_point,
                           std::optional<bool> save_mask) const {
    return BARAQUANT_CALL(fake_quantize, save_mask, input, scale, zero_point);
  }

  at::Tensor quantize(const at::Tensor& input, const at::Tensor& scale, Maybe zero_point) const {
    return BARAQUANT_CALL(quantize, at::kChar, input, scale, zero_point);
  }

  at::Tensor dynamic_fake_quantize(const at::Tensor& input, bool symmetric) const {
    return BARAQUANT_CALL(dynamic_fake_quantize, symmetric, input);
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> dynamic_quantize(const at::Tensor& input,
                                                                  bool symmetric) const {
    return BARAQUANT_CALL(dynamic_range_quantize, symmetric, input);
  }

  // A matrix with a row of values for each scale.
  at::Tensor segments(const char* owner, const at::Tensor& input) const {
    const auto as_rows = [](const at::Tensor& values) {
      const auto rows = values.size(0);
      return values.reshape({rows, rows == 0 ? 0 : values.numel() / rows});
    };
    if (granularity == "per_tensor") return input.reshape({1, input.numel()});
    if (granularity == "per_channel") return as_rows(input.movedim(axis, 0));
    if (granularity == "per_token") {
      const auto tokens = c10::multiply_integers(input.sizes().slice(0, input.sizes().size() - 1));
      return input.reshape({tokens, input.size(-1)});
    }
    TORCH_CHECK_VALUE(axis == -1 || axis == input.dim() - 1, owner,
                      ": expected groups along the last dimension");
    TORCH_CHECK_VALUE(input.size(-1) % group_size == 0, owner, ": expected group_size to divide ",
                      input.size(-1), ", but got ", group_size);
    return input.reshape({-1, group_size});
  }
};

#undef BARAQUANT_CALL

// The ops for the options of FakeQuantize or LearnedFakeQuantize.
template <typename Options>
ByGranularity ops_of(const Options& options) {
  return {.granularity = options.granularity(),
          .axis = options.axis().value_or(-1),
          .group_size = options.group_size().value_or(0),
          .low = options.quant_min(),
          .high = options.quant_max()};
}

}  // namespace baraquant::nn
