// SPDX-License-Identifier: BSD-3-Clause
// Weights that are integers times a scale already: the integers and the scale that give their bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace baraquant::search {

// The integers that a scale may go with, and the dtype of the scale.
struct Grid {
  int64_t quant_min;
  int64_t quant_max;
  bool symmetric;
  std::string_view scale_dtype;
};

// Of each row of a matrix: the scale, in the compute dtype of the rows, the int32 zero point, and
// whether both are exact. Rows that are not have the scale 1.
struct Lattice {
  at::Tensor scale;
  at::Tensor zero_point;
  at::Tensor is_exact;
};

// Find for each row of a matrix `[rows, columns]` the scale s and the zero point z with
//
//   dequantize(quantize(w, s, z), dtype) == w    for every w of the row.
//
// Zeros are equal whatever their signs, and a row of zeros is exact. Of several scales the largest
// is taken, whose integers are the smallest. Of neighbouring ones with the same integers it is one of
// the fewest significant bits (8, the bits of bfloat16, then 11, those of float16, then all), so that
// a scale which was a bfloat16 or float16 is one again. The zero point is the nearest to 0.
//
// The dtype is that of the rows. A float32 row whose values are all bfloat16 or float16, and which is
// not exact as float32, is exact where it is so in that dtype: a checkpoint that was read as float32.
//
// Unless `every` row is to be tried, 8 rows, with up to 256 values each, decide whether any is: at
// least half of those that hold more than zeros have to be exact, with so many values that chance
// does not explain it. So this takes next to no time where weights are not on a lattice.
Lattice find_lattice(const at::Tensor& rows, const Grid& grid, bool every);

}  // namespace baraquant::search
