// SPDX-License-Identifier: BSD-3-Clause
// What a call for CUDA does in a build without CUDA. The dispatch.cpp of a family then defines its
// cuda_kernels() by it.
#pragma once

#include <c10/util/Exception.h>

namespace baraquant {

// Raises NotImplementedError.
[[noreturn]] inline void raise_without_cuda() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "baraquant: got a CUDA tensor, but this baraquant was built without CUDA. Build it with nvcc "
      "and a CUDA torch at hand (BARAQUANT_CUDA=1 pip install --no-build-isolation .), or move the "
      "tensors to the CPU with .cpu()");
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace baraquant
