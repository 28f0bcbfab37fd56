// SPDX-License-Identifier: BSD-3-Clause
// Quantizes the rows of a matrix to int8, each with the scale of its own data. This is what
// dynamic_range_quantize_per_token(rows, quant_min, quant_max, symmetric=symmetric) computes; other
// ops call it below the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::range {

// If symmetric, 0 is the middle of the range (check_row_scheme).
struct RowScheme {
  bool symmetric = true;
  int64_t quant_min = -128, quant_max = 127;
};

struct QuantizedRows {
  at::Tensor values;      // int8 [rows, length]
  at::Tensor scale;       // [rows], of the compute type
  at::Tensor zero_point;  // int32 [rows]; undefined means 0, if symmetric
  at::Tensor mask;        // bit i: element i lay in the range before it was clamped
};

// rows: [rows, length], contiguous, floating, on the CPU or a GPU.
QuantizedRows quantize_rows(const at::Tensor& rows, const RowScheme& scheme, bool with_mask);

}  // namespace baraquant::range
