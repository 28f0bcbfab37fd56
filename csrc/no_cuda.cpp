// SPDX-License-Identifier: BSD-3-Clause
// Stands in for the CUDA kernels of every family in a build without CUDA.
#ifndef BARAQUANT_WITH_CUDA
#include <c10/util/Exception.h>

#include "affine/launch.h"
#include "fused/launch.h"
#include "int4/launch.h"
#include "int8_mm/launch.h"
#include "range/launch.h"
#include "scaled/launch.h"
#include "weight_only/launch.h"

namespace baraquant {
namespace {

[[noreturn]] void raise() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "baraquant: got a CUDA tensor, but this baraquant was built without CUDA. Build it with nvcc "
      "and a CUDA torch at hand (BARAQUANT_CUDA=1 pip install --no-build-isolation .), or move the "
      "tensors to the CPU with .cpu()");
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

const affine::Kernels& affine::cuda_kernels() { raise(); }
const range::Kernels& range::cuda_kernels() { raise(); }
const fused::Kernels& fused::cuda_kernels() { raise(); }
const int4::Kernels& int4::cuda_kernels() { raise(); }
const int8_mm::Kernels& int8_mm::cuda_kernels() { raise(); }
const scaled::Kernels& scaled::cuda_kernels() { raise(); }
const weight_only::Kernels& weight_only::cuda_kernels() { raise(); }

}  // namespace baraquant
#endif
