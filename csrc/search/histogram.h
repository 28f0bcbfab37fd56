// SPDX-License-Identifier: BSD-3-Clause
// A histogram of floats whose bins are defined by the bits of the values, and the ranges from it.
//
// A bin holds the values that share their sign, their exponent and the first six bits of their
// mantissa. Its width is between 1/128 and 1/64 of its values, whatever their size. So no range has
// to be guessed from the first batch, nothing is resampled, and the counts do not depend on the order
// of the data. The size is constant: 2^15 counts, 256 KiB.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace baraquant::search {

// How many of the floating values, of any shape, are in each bin: int64 `[2^15]`. Bin i is that of
// the float32 whose upper 15 bits are i. The histogram of several tensors is the sum of theirs.
at::Tensor histogram(const at::Tensor& values);

// The ends of ranges, from the counts of all values and from the least and the largest of them, which
// are finite.

// The range that leaves out all but `percentile` percent: of the absolute values if it is symmetric,
// else half of the rest at each end. Values are taken to be spread evenly in their bin.
std::tuple<double, double> percentile_range(const at::Tensor& counts, const at::Tensor& min_val,
                                            const at::Tensor& max_val, double percentile,
                                            bool symmetric);

// The range whose quantization has the minimum mean squared error. The candidates are ranges down to
// 2^-12 of the widest, first in steps of a quarter of an octave, then in finer steps. The two ends of
// an asymmetric range are searched in turn.
std::tuple<double, double> least_error_range(const at::Tensor& counts, const at::Tensor& min_val,
                                             const at::Tensor& max_val, int64_t quant_min,
                                             int64_t quant_max, bool symmetric);

}  // namespace baraquant::search
