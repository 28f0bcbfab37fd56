// SPDX-License-Identifier: BSD-3-Clause
// Stands in for the CUDA kernels in a build without CUDA.
#ifndef BARAQUANT_WITH_CUDA
#include "affine/kernels.h"
#include "int8_mm/kernels.h"

namespace baraquant::int8_mm {

const Kernels& cuda_kernels() {
  affine::cuda_kernels();  // says what is missing
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace baraquant::int8_mm
#endif
