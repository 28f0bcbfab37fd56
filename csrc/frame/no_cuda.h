// SPDX-License-Identifier: BSD-3-Clause
// What a call for CUDA does in a build without CUDA. The dispatch.cpp of a family then defines its
// cuda_kernels() by it.
#pragma once

namespace baraquant {

// Raises NotImplementedError.
[[noreturn]] void raise_without_cuda();

}  // namespace baraquant
