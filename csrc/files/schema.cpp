// SPDX-License-Identifier: BSD-3-Clause
// Private ops: the packing of few bits, which Python calls by them and C++ calls as functions.
#include <torch/library.h>

#include "files/packing.h"

namespace baraquant::files {

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  m.def("_pack_bits(Tensor integers, int bits) -> Tensor", &pack);
  m.def("_unpack_bits(Tensor packed, int bits, int[] shape) -> Tensor", &unpack);
}

}  // namespace baraquant::files
