// SPDX-License-Identifier: BSD-3-Clause
// The scale and the zero point of a range, and the one place that rounds scales to a dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>

namespace baraquant::search {

// The weight of each batch in a moving average, the same as in torch.ao's observers.
constexpr double kAveragingConstant = 0.01;
// The smallest normal float32: the least that a learned scale can be.
constexpr double kSmallestNormal = 0x1p-126;

// The nearest number of a dtype ("float32", "bfloat16" or "float16") for each scale, of two the even
// one, in the scale's own dtype. The smallest positive number of the dtype takes the place of 0
// (bfloat16: the smallest normal one). Beyond the largest number it is infinite.
at::Tensor rounded_scale(const at::Tensor& scale, std::string_view scale_dtype);

// What choose_qparams gives for data with these ends; both `[]` or `[C]`. An empty range (inf, -inf)
// gets the ends 0, and so the scale 1. A NaN stays. The scale is rounded to `scale_dtype`, and the
// zero point is that of the rounded scale.
std::tuple<at::Tensor, at::Tensor> qparams_of_range(const at::Tensor& min_val,
                                                    const at::Tensor& max_val, int64_t quant_min,
                                                    int64_t quant_max, bool symmetric,
                                                    std::string_view scale_dtype = "float32");

// A power of two for each magnitude, float32 or float64, whose product with it lies in [1, 2); 1 for
// zeros, NaN and infinity. The product with it is exact, so sums of squares of what it multiplies
// neither overflow nor vanish, and compare as those of other magnitudes do.
at::Tensor power_to_one(const at::Tensor& magnitude);

// The sum of `rint(|x| / largest * 2^k)` over each row of a matrix, int64 `[rows]`: exact, so that its
// bits depend on no order. k is at most 52, and small enough for `count` terms; a row may be a part of
// `count` values. Rows of zeros and rows that are not finite give 0.
at::Tensor sum_of_magnitudes(const at::Tensor& rows, const at::Tensor& largest, int64_t count);

// The mean magnitude that such a sum stands for, in the dtype of `largest`: 1 for zeros, else at least
// the smallest normal number; NaN for a row that is not finite.
at::Tensor mean_of_magnitudes(const at::Tensor& sum, const at::Tensor& largest, int64_t count);

}  // namespace baraquant::search
