// SPDX-License-Identifier: BSD-3-Clause
// The kernels for Hopper's tensor cores as their callers see them, without CUTLASS's headers.
#pragma once

#include <cuda_runtime_api.h>

#include "int8_mm/cuda/tiles.h"
#include "int8_mm/operands.h"
#include "machine/float_types.h"

namespace baraquant::int8_mm::hopper {

// The input is int8, and k % 16 == 0. Input, weight and output are aligned to 16 bytes, and so is
// every row of the output; its rows are output_stride elements apart. All sizes fit in int32.
struct Call {
  Operands operands;
  Rescaling<float> rescaling;
  void* output = nullptr;
  int64_t output_stride = 0;
  void* workspace = nullptr;
  int device = 0, multiprocessors = 0;
  cudaStream_t stream = nullptr;
};

// The kernel of one tile for one type of the output.
struct Kernel {
  int64_t (*workspace_bytes)(const Call&) = nullptr;
  bool (*launch)(const Call&) = nullptr;  // returns false if CUTLASS refuses
};

template <typename T>
struct OutputIndex;  // 0, 1, 2
template <>
struct OutputIndex<float> {
  static constexpr int value = 0;
};
template <>
struct OutputIndex<Float16> {
  static constexpr int value = 1;
};
template <>
struct OutputIndex<BFloat16> {
  static constexpr int value = 2;
};

// The kernels of one tile, in the order of OutputIndex.
struct Kernels {
  Kernel of[3];
};

// Each is instantiated in a separate file, instances/*.cu, so that they compile in parallel.
template <HopperTile tile>
const Kernels& hopper_kernels();
template <GroupedTile tile>
const Kernels& grouped_kernels();

}  // namespace baraquant::int8_mm::hopper
