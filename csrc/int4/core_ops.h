// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights. What each computes stands in ops.txt.
#pragma once

#include <tuple>

#include "frame/named_op.h"
#include "granularity/arguments.h"

namespace baraquant::int4 {

using Qparams = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The factors and zero points of groups of columns, as the ops take them.
struct Groups {
  const at::Tensor& factor;
  const OptionalTensor& zero_point;
  int64_t size;
};

struct ChooseArgs {
  const at::Tensor& weight;
  int64_t group_size;
  bool symmetric;
  int64_t bits;

  static constexpr int kFields = 4;
};

struct QuantizeArgs {
  const at::Tensor &weight, &scale, &group_factor;
  int64_t group_size;
  const OptionalTensor& group_zero_point;
  int64_t bits;

  static constexpr int kFields = 6;
  Groups groups() const { return {group_factor, group_zero_point, group_size}; }
};

struct ExpandArgs {
  const at::Tensor &packed, &group_factor;
  int64_t group_size;
  c10::SymInt in_features;
  const OptionalTensor& group_zero_point;

  static constexpr int kFields = 5;
  Groups groups() const { return {group_factor, group_zero_point, group_size}; }
};

inline constexpr NamedOp<"baraquant::choose_int4_qparams", Qparams(const ChooseArgs& args)>
    choose_int4_qparams;
inline constexpr NamedOp<"baraquant::quantize_int4", at::Tensor(const QuantizeArgs& args)>
    quantize_int4;
inline constexpr NamedOp<"baraquant::expand_int4", at::Tensor(const ExpandArgs& args)> expand_int4;
inline constexpr NamedOp<"baraquant::pack_int4", at::Tensor(const at::Tensor& integers)> pack_int4;

}  // namespace baraquant::int4
