// SPDX-License-Identifier: BSD-3-Clause
// The op of this family. What it computes stands in ops.txt.
#pragma once

#include <optional>

#include "frame/lists.h"
#include "frame/named_op.h"
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
  // The floating weight [N, columns] that it stands for.
  at::Tensor dequantized(const c10::SymInt& columns, at::ScalarType dtype) const;
};

inline constexpr const char* kOp = "baraquant::weight_only_linear";

struct LinearArgs {
  const at::Tensor &input, &weight, &weight_scale;
  const OptionalTensor &bias, &weight_zero_point;
  std::optional<c10::SymInt> group_size;

  static constexpr int kFields = 6;
  static constexpr const char* kOp = weight_only::kOp;
  Weight integers() const { return {weight, weight_scale, weight_zero_point, group_size}; }
};

// An input with some weights.
struct Linears {
  using One = LinearArgs;

  const at::Tensor& input;
  at::TensorList weights, weight_scales;
  OptionalTensors biases, weight_zero_points;
  std::optional<c10::SymInt> group_size;

  static constexpr int kFields = 6;
  static constexpr const char* kOp = "baraquant::_weight_only_linears";
};

inline constexpr NamedOp<"baraquant::weight_only_linear", at::Tensor(const LinearArgs& args)>
    weight_only_linear;

}  // namespace baraquant::weight_only
