// SPDX-License-Identifier: BSD-3-Clause
// What libbaraquant.so was built with. Without torch.
#pragma once

#include "../machine/export.h"  // relative: installed headers have another root

namespace baraquant {

// The strings are static; those about CUDA are empty if it was not compiled in.
struct BuildInfo {
  const char* version;             // of baraquant
  const char* torch_version;       // with its local part, as in "2.13.0+cpu"
  const char* compiler;            // of the host code
  const char* nvcc_version;        // as in "13.0.88"
  const char* cuda_architectures;  // as in TORCH_CUDA_ARCH_LIST: "8.0;9.0a"
  bool with_cuda;
  bool with_cutlass;  // the products of integers for Hopper's tensor cores
};

BARAQUANT_API const BuildInfo& build_info();

}  // namespace baraquant
