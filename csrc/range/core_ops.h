// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the range family. What each computes stands with its schema in schema.cpp.
#pragma once

#include <string>

#include "frame/named_op.h"
#include "granularity/arguments.h"
#include "range/math.h"

namespace baraquant::range {

// What an op that chooses scales takes besides its input.
struct RangeArgs {
  Scope scope = {};
  int64_t quant_min = -128, quant_max = 127;
  bool symmetric = true;

  static constexpr int kFields = 4;
  RowScheme scheme() const { return {symmetric, quant_min, quant_max}; }
  static std::string schema() {
    return std::string(Scope::kSchema) + ", int quant_min, int quant_max, bool symmetric";
  }
};

// What an op that observes takes. It writes the running range, and skipped_batches goes up by 1 with
// a batch that is not finite.
struct ObserveArgs {
  const at::Tensor &input, &min_val, &max_val;
  std::optional<int64_t> axis;
  std::optional<double> averaging_constant;
  const OptionalTensor& skipped_batches;

  static constexpr int kFields = 6;
};

// The same for a quantizer with a static scale, which the op writes too.
struct ObserveQparamsArgs {
  const at::Tensor &input, &min_val, &max_val, &scale, &zero_point, &observer_enabled;
  std::optional<int64_t> axis;
  std::optional<double> averaging_constant;
  int64_t quant_min, quant_max;
  bool symmetric;
  const OptionalTensor& skipped_batches;

  static constexpr int kFields = 12;
  RowScheme scheme() const { return {symmetric, quant_min, quant_max}; }
  ObserveArgs range() const {
    return {input, min_val, max_val, axis, averaging_constant, skipped_batches};
  }
};

inline constexpr NamedOp<"baraquant::_choose_qparams",
                         TensorPair(const at::Tensor& input, const RangeArgs& args)>
    choose_qparams;
inline constexpr NamedOp<"baraquant::_dynamic_quantize",
                         TensorTriple(const at::Tensor& input, const RangeArgs& args,
                                      at::ScalarType dtype)>
    dynamic_quantize;
inline constexpr NamedOp<"baraquant::_dynamic_fake_quantize",
                         at::Tensor(const at::Tensor& input, const RangeArgs& args)>
    dynamic_fake_quantize;
inline constexpr NamedOp<"baraquant::_dynamic_fake_quantize_with_mask",
                         TensorPair(const at::Tensor& input, const RangeArgs& args)>
    dynamic_fake_quantize_with_mask;
inline constexpr NamedOp<"baraquant::_observe_min_max_", void(const ObserveArgs& args)>
    observe_min_max;
inline constexpr NamedOp<"baraquant::_observe_qparams_", void(const ObserveQparamsArgs& args)>
    observe_qparams;

}  // namespace baraquant::range
