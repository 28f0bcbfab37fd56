// SPDX-License-Identifier: BSD-3-Clause
// Private ops: the searches for ranges and scales, which Python calls by them and C++ calls as
// functions. They are composed of other ops, so that they work wherever those do. What each computes
// stands in the headers.
#include <torch/library.h>

#include "search/histogram.h"
#include "search/range.h"
#include "search/weights.h"

namespace baraquant::search {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const auto define = [&m](const char* schema, auto function) {
    m.def(schema, function, {at::Tag::pt2_compliant_tag});
  };
  define("_rounded_scale(Tensor scale, str scale_dtype) -> Tensor", &rounded_scale);
  define(
      "_qparams_of_range(Tensor min_val, Tensor max_val, int quant_min, int quant_max, "
      "bool symmetric, str scale_dtype) -> (Tensor scale, Tensor zero_point)",
      &qparams_of_range);
  define("_sum_of_magnitudes(Tensor rows, Tensor largest, int count) -> Tensor",
         &sum_of_magnitudes);
  define("_mean_of_magnitudes(Tensor sum, Tensor largest, int count) -> Tensor",
         &mean_of_magnitudes);
  define("_power_to_one(Tensor magnitude) -> Tensor", &power_to_one);
  define(
      "_search_scale(Tensor rows, int quant_min, int quant_max, bool symmetric, str scale_dtype, "
      "Tensor? importance=None, str scale_rule=\"search\") -> "
      "(Tensor scale, Tensor zero_point, Tensor is_exact)",
      &search_scale);
  define(
      "_search_int4_factors(Tensor rows, int group_size, bool symmetric, Tensor? scale=None, "
      "int bits=4) -> (Tensor scale, Tensor group_factor, Tensor group_zero_point)",
      &search_int4_factors);
  define(
      "_fit_int4_factors(Tensor rows, int group_size, bool symmetric, str scale_rule, int bits=4) "
      "-> "
      "(Tensor scale, Tensor group_factor, Tensor group_zero_point, Tensor is_exact)",
      &fit_int4_factors);
  define("_histogram(Tensor values) -> Tensor", &histogram);
  define(
      "_percentile_range(Tensor counts, Tensor min_val, Tensor max_val, float percentile, "
      "bool symmetric) -> (float low, float high)",
      &percentile_range);
  define(
      "_least_error_range(Tensor counts, Tensor min_val, Tensor max_val, int quant_min, "
      "int quant_max, bool symmetric) -> (float low, float high)",
      &least_error_range);
}

}  // namespace baraquant::search
