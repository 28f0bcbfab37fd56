// SPDX-License-Identifier: BSD-3-Clause
// From a sum to an output, for the generic and the vector kernel: the numbers of a row of the input
// and those of a row of the weight are loaded once, then the formula of int8_mm/math.h is applied.
#pragma once

#include <type_traits>

#include "int8_mm/cuda/kernels.h"
#include "int8_mm/math.h"
#include "int8_mm/operands.h"
#include "machine/float_types.h"
#include "machine/pack.cuh"

namespace baraquant::int8_mm {

template <typename C>
struct RowScales {
  C input_scale;
  int32_t zero_point;

  RowScales() = default;
  __device__ __forceinline__ RowScales(const Rescaling<C>& r, int64_t m)
      : input_scale(r.input_scale.at(m)), zero_point(r.zero_point_of(m)) {}
};

template <typename C>
struct ColumnScales {
  C weight_scale, bias;
  int32_t weight_sum;

  ColumnScales() = default;
  __device__ __forceinline__ ColumnScales(const Rescaling<C>& r, int64_t n)
      : weight_scale(r.wants_sums() ? C{} : r.weight_scale[n]),
        bias(r.bias ? r.bias[n] : kNoBias<C>),
        weight_sum(r.weight_sum ? r.weight_sum[n] : 0) {}
};

// NB: sums that are wanted themselves are written by the kernels for float32, as its bits.
template <typename T, typename C>
__device__ __forceinline__ T output_of(const Rescaling<C>& r, int32_t sum, const RowScales<C>& row,
                                       const ColumnScales<C>& column) {
  const int32_t acc = shift(sum, row.zero_point, column.weight_sum);
  if constexpr (std::is_same_v<T, float>) {
    if (r.wants_sums()) return bit_cast<float>(acc);
  }
  return from_compute<T>(rescale(acc, column.weight_scale, row.input_scale, column.bias));
}

}  // namespace baraquant::int8_mm
