// SPDX-License-Identifier: BSD-3-Clause
// Quantizes the rows of a matrix to int8, each with the scale of its own data. This is what
// dynamic_range_quantize_per_token(rows, quant_min, quant_max, symmetric=symmetric) computes; other
// ops call it below the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "range/math.h"

namespace baraquant::range {

struct QuantizedRows {
  at::Tensor values;      // int8 [rows, length]
  at::Tensor scale;       // [rows], of the compute type
  at::Tensor zero_point;  // int32 [rows]; undefined means 0, if symmetric
  at::Tensor mask;        // bit i: element i lay in the range before it was clamped
};

// rows: [rows, length], contiguous, floating, on the CPU or a GPU. If the scheme is symmetric, 0 is
// the middle of its range (check_row_scheme).
QuantizedRows quantize_rows(const at::Tensor& rows, const RowScheme& scheme, bool with_mask);

// The same into given tensors, and for any range: values int8 or uint8 [rows, length], scale and
// zero_point [rows], all contiguous. The rows are not empty.
struct RowTargets {
  at::Tensor values, scale, zero_point;
};
void quantize_rows_into(const at::Tensor& rows, const RowScheme& scheme, const RowTargets& to);

// Memory of these sizes for the scales and the zero points that are chosen for x. Without elements x
// has those of zeros.
std::pair<at::Tensor, at::Tensor> empty_qparams(const at::Tensor& x, c10::SymIntArrayRef sizes,
                                                const RowScheme& scheme);

}  // namespace baraquant::range
