// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the range family, run before any kernel on every device and under tracing.
#pragma once

#include <limits>

#include "frame/checks.h"
#include "range/core_ops.h"
#include "range/quantize_rows.h"

namespace baraquant::range {

// Checks the range of the integers that a scale is chosen for. prefix: as in check_range.
template <typename Op>
void check_chosen_range(const Op& op, int64_t quant_min, int64_t quant_max, at::ScalarType dtype,
                        bool symmetric, const char* prefix = "") {
  check_range(op, quant_min, quant_max, dtype, prefix);
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(quant_min >= kMin && quant_max <= kMax, op, ": expected ", prefix,
                    "quant_min and ", prefix,
                    "quant_max to fit in 32 bits, as the zero point has to, but got ", quant_min,
                    " and ", quant_max);
  TORCH_CHECK_VALUE(!symmetric || quant_max - quant_min >= 2, op, ": expected ", prefix,
                    "quant_max - ", prefix,
                    "quant_min to be at least 2 in a symmetric scheme (with one step there is no "
                    "room on both sides of zero), but got ",
                    quant_min, " and ", quant_max);
}

// dtype: that of the integers; if absent, the op returns none.
void check_choose(const OpName& op, const at::Tensor& input, const RangeArgs& args,
                  std::optional<at::ScalarType> dtype = std::nullopt);
// prefix: stands before the argument names quant_min and quant_max.
void check_row_scheme(const char* op, const RowScheme& scheme, const char* prefix = "");
void check_observe(const char* op, const ObserveArgs& args);
void check_observe_qparams(const char* op, const ObserveQparamsArgs& args);

}  // namespace baraquant::range
