// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the range family, run before any kernel on every device and under tracing.
#pragma once

#include "range/core_ops.h"
#include "range/quantize_rows.h"

namespace baraquant::range {

// dtype: that of the integers; if absent, the op returns none.
void check_choose(const OpName& op, const at::Tensor& input, const RangeArgs& args,
                  std::optional<at::ScalarType> dtype = std::nullopt);
// prefix: stands before the argument names quant_min and quant_max.
void check_row_scheme(const char* op, const RowScheme& scheme, const char* prefix = "");
void check_observe_min_max(const char* op, const at::Tensor& input, const at::Tensor& min_val,
                           const at::Tensor& max_val, const ObserveArgs& args);
void check_observe_qparams(const char* op, const at::Tensor& input, const Observed& observed,
                           const at::Tensor& observer_enabled, const ObserveArgs& args,
                           int64_t quant_min, int64_t quant_max, bool symmetric);

}  // namespace baraquant::range
