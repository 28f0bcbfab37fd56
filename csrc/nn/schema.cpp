// SPDX-License-Identifier: BSD-3-Clause
// Private ops: formulas of learned grids, which Python calls by them and C++ calls as functions.
#include <torch/library.h>

#include "nn/learned_formulas.h"

namespace baraquant::nn {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const std::vector<at::Tag> traceable = {at::Tag::pt2_compliant_tag};
  m.def(
      "_first_learned_qparams(Tensor rows, int quant_min, int quant_max, bool symmetric, "
      "str scale_dtype) -> (Tensor scale, Tensor zero_point)",
      &first_learned_qparams, traceable);
  m.def(
      "_learned_int4_qparams(Tensor steps, Tensor scale, Tensor? zero_point, int bits=4) -> "
      "(Tensor scale, Tensor group_factor, Tensor group_zero_point)",
      &learned_int4_qparams, traceable);
  m.def(
      "_smooth_int4(Tensor input, Tensor steps, Tensor scale, Tensor? zero_point, "
      "int group_size, int bits=4) -> Tensor",
      &smooth_int4, traceable);
}

}  // namespace baraquant::nn
