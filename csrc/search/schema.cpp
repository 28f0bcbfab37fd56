// SPDX-License-Identifier: BSD-3-Clause
// Private ops: the searches for ranges and scales, which Python calls by them and C++ calls as
// functions. They are composed of other ops, so that they work wherever those do; what each computes
// stands in the headers. Python says what the arguments have to be.
#include "granularity/public_op.h"
#include "search/histogram.h"
#include "search/int4_factors.h"
#include "search/range.h"
#include "search/scale.h"

namespace baraquant::search {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m, "_rounded_scale(Tensor scale, str scale_dtype) -> Tensor");
  define(m,
         "_qparams_of_range(Tensor min_val, Tensor max_val, int quant_min, int quant_max, "
         "bool symmetric, str scale_dtype) -> (Tensor scale, Tensor zero_point)");
  define(m, "_power_to_one(Tensor magnitude) -> Tensor");
  define(m,
         "_search_scale(Tensor rows, int quant_min, int quant_max, bool symmetric, "
         "str scale_dtype, Tensor? importance=None) -> (Tensor scale, Tensor zero_point)");
  define(m,
         "_search_int4_factors(Tensor rows, int group_size, bool symmetric, Tensor? scale=None) -> "
         "(Tensor scale, Tensor group_factor, Tensor group_zero_point)");
  define(m, "_histogram(Tensor values) -> Tensor");
  define(m,
         "_percentile_range(Tensor counts, Tensor min_val, Tensor max_val, float percentile, "
         "bool symmetric) -> (float low, float high)");
  define(m,
         "_least_error_range(Tensor counts, Tensor min_val, Tensor max_val, int quant_min, "
         "int quant_max, bool symmetric) -> (float low, float high)");
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  m.impl("_rounded_scale", &rounded_scale);
  m.impl("_qparams_of_range", &qparams_of_range);
  m.impl("_power_to_one", &power_to_one);
  m.impl("_search_scale", &search_scale);
  m.impl("_search_int4_factors", &search_int4_factors);
  m.impl("_histogram", &histogram);
  m.impl("_percentile_range", &percentile_range);
  m.impl("_least_error_range", &least_error_range);
}

}  // namespace baraquant::search
