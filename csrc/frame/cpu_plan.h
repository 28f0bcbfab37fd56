// SPDX-License-Identifier: BSD-3-Clause
// What the plans of CPU kernels (plan.h) have in common. Without torch.
#pragma once

#include <utility>

#include "frame/plan.h"
#include "machine/cpu_isa.h"

namespace baraquant {

// The plan of a kernel that computes in C.
template <typename C>
KernelPlan cpu_plan(std::string name, std::string tile, const char* accumulator = "",
                    int64_t workspace_bytes = 0) {
  return {.name = std::move(name),
          .backend = "cpu",
          .architecture = cpu_isa_name(cpu_isa()),
          .tile = std::move(tile),
          .compute_dtype = compute_name<C>(),
          .accumulator_dtype = accumulator,
          .workspace_bytes = workspace_bytes};
}

}  // namespace baraquant
