// SPDX-License-Identifier: BSD-3-Clause
// The tiles that the output of a CUDA product is cut into, and the choice among them, which depends
// on m, n, k and the number of multiprocessors alone. Without torch or CUDA. m counts rows of the
// input and n rows of the weight, even if a kernel swaps the two.
#pragma once

#include <cstdint>

#include "int8_mm/cuda/generic/tiles.h"
#include "int8_mm/cuda/hopper/tiles.h"

namespace baraquant::int8_mm {

// --- a product of one to four rows ---------------------------------------------------------------

constexpr int kMaxVectorRows = 4;

// The vector kernel reads the weights once, without tensor cores: each of its threads multiplies
// what it reads with every row. From three rows on, a Hopper tile is faster if the weight has a
// number of rows with which the vector kernel leaves many multiprocessors idle at the end.
// benchmarks/rows_sweep.py found the bounds on an H200 (132 multiprocessors). Against the best
// kernel this choice loses 0.3 % on average with one row, 0 % with two, 0.4 % with three and 1.1 %
// with four, and at most 14 %.
inline bool prefers_vector_kernel(int64_t m, int64_t n, int64_t k, bool allows_hopper) {
  if (m <= 2 || !allows_hopper) return m <= kMaxVectorRows;
  if (m == 3) return n <= 4096 || n > 8192;
  return m == 4 && (n <= 1024 || n > 8192 || (n <= 2048 && k >= 8192));
}

// --- a product of few rows with a weight of four bits --------------------------------------------

constexpr int kPackedColumns = 32;  // of a row of the weight, which a thread loads at once

}  // namespace baraquant::int8_mm
