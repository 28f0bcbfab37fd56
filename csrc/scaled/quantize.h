// SPDX-License-Identifier: BSD-3-Clause
// What the scaled ops compute, below the dispatcher: other ops call it, for parts of a matrix too.
#pragma once

#include "scaled/launch.h"

namespace baraquant::scaled {

// An input [..., N] as a contiguous [M, N]; also if N is 0.
Part whole(const at::Tensor& input);

// The rows begin .. end - 1 of a whole matrix, or its columns.
Part rows_of(const Part& matrix, int64_t begin, int64_t end);
Part columns_of(const Part& matrix, int64_t begin, int64_t end);

struct Quantized {
  at::Tensor values;  // int8: [rows, columns], or [columns, rows] if transposed
  at::Tensor scale;   // one for each row of the values
};

// One zero for each column, for the maxima below.
at::Tensor no_maxima(const Part& input);

// The sums of columns: memory for those of the pieces, a pass that finds them, and what they add up
// to, in the compute type.
at::Tensor empty_sums(const Part& input);
at::Tensor sums_of_pieces(const Part& input);
at::Tensor total(const at::Tensor& pieces);

// What quantize_rows finds beside the integers, where it is defined: see RowsCall.
struct OfColumns {
  at::Tensor row_factor, maxima;
  at::Tensor sums;
};

// factor: [columns].
Quantized quantize_rows(const Part& input, const at::Tensor& factor, const RandomState& random,
                        const OfColumns& of_columns = {});

// factor: [rows]. If maxima are undefined, a pass over the input finds them. zero_point and sums
// may be undefined: see ColumnsCall.
Quantized quantize_columns(const Part& input, const at::Tensor& factor, const RandomState& random,
                           const at::Tensor& maxima = {}, const at::Tensor& zero_point = {},
                           const at::Tensor& sums = {});

// values: int8 [rows, columns], contiguous.
at::Tensor transposed(const at::Tensor& values);

// The transpose of the integers of a floating matrix whose rows gave these scales: see GivenCall.
at::Tensor quantized_transpose(const at::Tensor& matrix, const at::Tensor& scale, int64_t quant_min,
                               int64_t quant_max);

}  // namespace baraquant::scaled
