// SPDX-License-Identifier: BSD-3-Clause
// The product on Hopper: CUTLASS's warp-specialised kernels (TMA loads, wgmma s8 x s8 -> s32) with
// the whole arithmetic of int8_mm/math.h in the epilogue. A swapped tile computes y^T = w x^T: its
// first side runs along n, and its second side, which may be as small as 8, along m. The output is
// the same memory, in column-major order.
#pragma once

// Before all headers: a kernel of CUTLASS's can be launched early only if this is defined, or else
// it would not wait.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include "int8_mm/cuda/hopper/instances.h"

#ifdef BARAQUANT_WITH_CUTLASS
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cuda/hopper/launcher.cuh"

namespace baraquant::int8_mm::hopper {

// Products of up to this many rows are launched before the kernel ends that quantizes the input: on
// an H200 that saves 0.4 to 1.9 us. With more rows it makes no difference.
constexpr int64_t kMaxEarlyRows = 128;

// The bytes of shared memory that each block has, where so many share a multiprocessor. This keeps a
// kilobyte for each of them.
constexpr int kSharedMemory = cutlass::gemm::collective::detail::sm90_smem_capacity_bytes;
constexpr int shared_memory_of_block(int blocks) {
  constexpr int kKept = 1024;
  return (kSharedMemory + kKept) / blocks - kKept;
}

// What CUTLASS's warp that loads the tiles does: the kernel is launched early, so that the warp has
// waited for the kernel before this one, whose results TMA now reads. They were written by plain
// stores, which TMA does not see without a fence.
template <typename Base>
struct AfterWait : Base {
  template <typename... Args>
  CUTLASS_DEVICE void load(Args&&... args) {
#if defined(__CUDA_ARCH__)
    static_assert(cutlass::arch::IsGdcGloballyEnabled);
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
    Base::load(static_cast<Args&&>(args)...);
  }
};

template <typename T, typename Tile>
struct Gemm {
  static constexpr bool swapped = Tile::swapped;
  using Output = Stored<T>;
  using Epilogue = EpilogueOf<T, Tile>;
  using EpilogueMemory = typename Epilogue::SharedStorage;
  static constexpr int kOfBlock = shared_memory_of_block(Tile::kRow.blocks);
  using Mainloop =
      AfterWait<MainloopOf<Tile, kSharedMemory - kOfBlock + int{sizeof(EpilogueMemory)}>>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, cutlass::gemm::PersistentScheduler>;
  static_assert(Kernel::SharedStorageSize <= kOfBlock);
  using Arguments = typename Kernel::Arguments;

  static Arguments arguments(const Call& call) {
    const Operands& f = call.operands;
    const int m = static_cast<int>(f.m), n = static_cast<int>(f.n), k = static_cast<int>(f.k);
    const auto* input = static_cast<const int8_t*>(f.input);
    Arguments a{};
    a.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    a.problem_shape = swapped ? cute::make_shape(n, m, k, 1) : cute::make_shape(m, n, k, 1);
    a.mainloop.ptr_A = swapped ? f.weight : input;
    a.mainloop.ptr_B = swapped ? input : f.weight;
    cute::get<0>(a.mainloop.dA) = k;
    cute::get<0>(a.mainloop.dB) = k;
    a.epilogue.thread = {call.rescaling, m, n};
    a.epilogue.ptr_D = static_cast<Output*>(call.output);
    cute::get<swapped ? 1 : 0>(a.epilogue.dD) = call.output_stride;
    a.hw_info.device_id = call.device;
    a.hw_info.sm_count = call.multiprocessors;
    return a;
  }

  static int64_t workspace_bytes(const Call& call) {
    return static_cast<int64_t>(Kernel::get_workspace_size(arguments(call)));
  }

  static bool launch(const Call& call) {
    const bool early = call.operands.m <= kMaxEarlyRows;
    return Launcher<Kernel>::launch(arguments(call), call.workspace, call, early);
  }
};

template <HopperTile tile>
const Kernels& hopper_kernels() {
  static constexpr Kernels kKernels = kernels_for_each_output<Gemm, Tile<tile>>();
  return kKernels;
}

}  // namespace baraquant::int8_mm::hopper
#endif
