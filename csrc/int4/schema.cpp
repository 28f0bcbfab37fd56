// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights: schemas. The arithmetic is in math.h, checks are in checks.cpp. The
// products of such weights belong to the integer matrix family (int8_mm/schema.cpp). What each op
// computes, and what its arguments are, stands in ops.txt. Outputs are contiguous.
#include "granularity/public_op.h"
#include "int4/core_ops.h"

namespace baraquant::int4 {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m,
         "choose_int4_qparams(Tensor weight, int group_size, *, bool symmetric=True, "
         "int bits=4) -> (Tensor scale, Tensor group_factor, Tensor group_zero_point)");
  define(m,
         "quantize_int4(Tensor weight, Tensor scale, Tensor group_factor, int group_size, *, "
         "Tensor? group_zero_point=None, int bits=4) -> Tensor");
  define(m,
         "expand_int4(Tensor packed, Tensor group_factor, int group_size, SymInt in_features, *, "
         "Tensor? group_zero_point=None) -> Tensor");
  define(m, "pack_int4(Tensor integers) -> Tensor");
}

}  // namespace baraquant::int4
