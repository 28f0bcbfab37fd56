// SPDX-License-Identifier: BSD-3-Clause
// The op of this family, through the dispatcher. What it computes stands with its schema in
// schema.cpp.
#pragma once

#include <optional>

#include "granularity/arguments.h"

namespace baraquant::weight_only {

// The weight, as the op takes it.
struct Weight {
  const at::Tensor& values;  // int8 [N, K], or packed: uint8 [N, ceil(K / 2)]
  const at::Tensor& scale;
  const OptionalTensor& zero_point;
  const std::optional<c10::SymInt>& group_size;

  bool is_packed() const { return values.scalar_type() == at::kByte; }
  // Which elements share a scale.
  Scope scope() const {
    return group_size ? PerGroup::from_flat(*group_size, /*axis=*/1)
                      : PerChannel::from_flat(/*axis=*/0);
  }
};

at::Tensor weight_only_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& weight_scale, const OptionalTensor& bias,
                              const OptionalTensor& weight_zero_point,
                              std::optional<c10::SymInt> group_size);

}  // namespace baraquant::weight_only
