// SPDX-License-Identifier: BSD-3-Clause
// Stands in for the CUDA kernels in a build without CUDA.
#ifndef BARAQUANT_WITH_CUDA
#include "affine/kernels.h"
#include "range/kernels.h"

namespace baraquant::range {

const Kernels& cuda_kernels() {
  affine::cuda_kernels();  // says what is missing
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace baraquant::range
#endif
