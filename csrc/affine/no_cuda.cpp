// SPDX-License-Identifier: BSD-3-Clause
// Stands in for affine_cuda.cu in a build without CUDA.
#ifndef BARAQUANT_WITH_CUDA
#include <c10/util/Exception.h>

#include "affine/kernels.h"

namespace baraquant::affine {

const Kernels& cuda_kernels() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "baraquant: got a CUDA tensor, but this baraquant was built without CUDA. Build it with nvcc "
      "and a CUDA torch at hand (BARAQUANT_CUDA=1 pip install --no-build-isolation .), or move the "
      "tensors to the CPU with .cpu()");
}

}  // namespace baraquant::affine
#endif
