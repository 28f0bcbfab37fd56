// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the range family, through the dispatcher. What each computes stands with its
// schema in schema.cpp.
#pragma once

#include <string>

#include "granularity/arguments.h"

namespace baraquant::range {

using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// What an op that chooses scales takes besides its input.
struct RangeArgs {
  Scope scope = {};
  int64_t quant_min = -128, quant_max = 127;
  bool symmetric = true;

  static std::string schema() {
    return std::string(Scope::kSchema) + ", int quant_min, int quant_max, bool symmetric";
  }
  using Flat = std::tuple<int64_t, int64_t, c10::SymInt, int64_t, int64_t, bool>;
  Flat flat() const {
    return std::tuple_cat(scope.flat(), std::make_tuple(quant_min, quant_max, symmetric));
  }
  static RangeArgs from_flat(int64_t granularity, int64_t axis, c10::SymInt group_size,
                             int64_t quant_min, int64_t quant_max, bool symmetric) {
    return {.scope = Scope::from_flat(granularity, axis, std::move(group_size)),
            .quant_min = quant_min,
            .quant_max = quant_max,
            .symmetric = symmetric};
  }
};

// What an op that observes takes besides its tensors.
struct ObserveArgs {
  std::optional<int64_t> axis;
  std::optional<double> averaging_constant;
  const OptionalTensor& skipped_batches;  // goes up by 1 with a batch that is not finite
};

TensorPair choose_qparams(const at::Tensor& input, const RangeArgs& args);
TensorTriple dynamic_quantize(const at::Tensor& input, const RangeArgs& args, at::ScalarType dtype);
at::Tensor dynamic_fake_quantize(const at::Tensor& input, const RangeArgs& args);
TensorPair dynamic_fake_quantize_with_mask(const at::Tensor& input, const RangeArgs& args);
void observe_min_max(const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
                     const ObserveArgs& args);

// The running range and the scale of a quantizer with a static scale. The op writes all of them.
struct Observed {
  const at::Tensor &min_val, &max_val, &scale, &zero_point;
};
void observe_qparams(const at::Tensor& input, const Observed& observed,
                     const at::Tensor& observer_enabled, const ObserveArgs& args, int64_t quant_min,
                     int64_t quant_max, bool symmetric);

}  // namespace baraquant::range
