// SPDX-License-Identifier: BSD-3-Clause
// The kernels for Hopper's tensor cores as their callers see them, without CUTLASS's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

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

// The place of an output's type in Kernels.
template <typename T>
constexpr int kOutputIndex = std::is_same_v<T, BFloat16>  ? 2
                             : std::is_same_v<T, Float16> ? 1
                                                          : 0;

// The kernels of one tile, in the order of kOutputIndex.
struct Kernels {
  Kernel of[3];
};

// Each is instantiated in a unit of its own (scripts/toolchain.py), so that they compile in parallel.
template <HopperTile tile>
const Kernels& hopper_kernels();
template <GroupedTile tile>
const Kernels& grouped_kernels();

}  // namespace baraquant::int8_mm::hopper

// All that such a unit has besides the header of the kernels. It is empty without CUTLASS.
#ifdef BARAQUANT_WITH_CUTLASS
#define BARAQUANT_INSTANCE(kernels, tile)             \
  template const baraquant::int8_mm::hopper::Kernels& \
  baraquant::int8_mm::hopper::kernels<baraquant::int8_mm::tile>()
#else
#define BARAQUANT_INSTANCE(kernels, tile) static_assert(true)
#endif
