// SPDX-License-Identifier: BSD-3-Clause
// What the plans of CUDA kernels (plan.h) have in common. Without torch.
#pragma once

#include <cuda_runtime_api.h>

#include "frame/plan.h"

namespace baraquant {

// The architecture of the current device, such as "sm_90".
inline std::string current_architecture() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return "sm_" + std::to_string(major * 10 + minor);
}

// The plan of a kernel that computes in C.
template <typename C>
KernelPlan cuda_plan(std::string name, std::string tile, int64_t workspace_bytes = 0,
                     const char* accumulator = "") {
  return {.name = std::move(name),
          .backend = "cuda",
          .architecture = current_architecture(),
          .tile = std::move(tile),
          .compute_dtype = compute_name<C>(),
          .accumulator_dtype = accumulator,
          .workspace_bytes = workspace_bytes};
}

}  // namespace baraquant
