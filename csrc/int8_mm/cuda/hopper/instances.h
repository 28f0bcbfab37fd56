// SPDX-License-Identifier: BSD-3-Clause
// The kernels for Hopper's tensor cores, as their callers see them: without CUTLASS's headers.
#pragma once

#include <cuda_runtime_api.h>

#include "int8_mm/cuda/tiles.h"
#include "int8_mm/operands.h"
#include "machine/float_types.h"

namespace baraquant::int8_mm::hopper {

// An int8 input, with k % 16 == 0; input, weight and output begin at 16 bytes, and so does every
// row of the output: they are output_stride elements apart. All sizes fit in int32.
struct Call {
  Operands factors;
  Rescaling<float> rescaling;
  void* output = nullptr;
  int64_t output_stride = 0;
  void* workspace = nullptr;
  int device = 0, multiprocessors = 0;
  cudaStream_t stream = nullptr;
};

// One tile for one type of the output.
struct Kernel {
  int64_t (*workspace_bytes)(const Call&) = nullptr;
  bool (*launch)(const Call&) = nullptr;  // false: CUTLASS refused
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

// In the order of OutputIndex.
struct Kernels {
  Kernel of[3];
};

// Each is instantiated in a file of its own, instances/*.cu: they compile side by side.
template <HopperTile tile>
const Kernels& hopper_kernels();
template <GroupedTile tile>
const Kernels& grouped_kernels();

}  // namespace baraquant::int8_mm::hopper
