// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights, through the dispatcher. What each computes stands with its schema in
// schema.cpp.
#pragma once

#include <tuple>

#include "granularity/arguments.h"

namespace baraquant::int4 {

using Qparams = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The factors and zero points of groups of columns, as the ops take them.
struct Groups {
  const at::Tensor& factor;
  const OptionalTensor& zero_point;
  int64_t size;
};

Qparams choose_int4_qparams(const at::Tensor& weight, int64_t group_size, bool symmetric);
at::Tensor quantize_int4(const at::Tensor& weight, const at::Tensor& scale,
                         const at::Tensor& group_factor, int64_t group_size,
                         const OptionalTensor& group_zero_point);
at::Tensor expand_int4(const at::Tensor& packed, const at::Tensor& group_factor, int64_t group_size,
                       c10::SymInt in_features, const OptionalTensor& group_zero_point);
at::Tensor pack_int4(const at::Tensor& integers);

}  // namespace baraquant::int4
