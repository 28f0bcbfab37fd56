// SPDX-License-Identifier: BSD-3-Clause
// From the ops of the fused family to the CUDA kernels: device guard, current stream, launch check.
// The kernels are spread over several .cu files, which compile in parallel.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "fused/cuda/rows.cuh"
#include "fused/launch.h"

namespace baraquant::fused {

bool norm_cuda(const NormCall& call);
bool activation_cuda(const ActivationCall& call);
bool hadamard_cuda(const HadamardCall& call);

}  // namespace baraquant::fused
