// SPDX-License-Identifier: BSD-3-Clause
// The devices of a family's ops: the last lines of its dispatch.cpp.
#pragma once

#include <c10/util/Exception.h>
#include <torch/library.h>

namespace baraquant {

// What a call for CUDA does in a build without CUDA: raises NotImplementedError.
[[noreturn]] inline void raise_without_cuda() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "baraquant: got a CUDA tensor, but this baraquant was built without CUDA. Build it with nvcc "
      "and a CUDA torch at hand (BARAQUANT_CUDA=1 pip install --no-build-isolation .), or move the "
      "tensors to the CPU with .cpu()");
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace baraquant

#ifdef BARAQUANT_WITH_CUDA
#define BARAQUANT_WITHOUT_CUDA
#else
#define BARAQUANT_WITHOUT_CUDA \
  const Kernels& cuda_kernels() { raise_without_cuda(); }
#endif

// Registers the ops for CPU, CUDA and Meta. `register_kernels` takes the torch::Library.
#define BARAQUANT_REGISTER_DEVICES(register_kernels)              \
  TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }  \
  TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); } \
  TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); } \
  BARAQUANT_WITHOUT_CUDA
