// SPDX-License-Identifier: BSD-3-Clause
// The product on Hopper: CUTLASS's warp-specialised kernels (TMA loads, wgmma s8 x s8 -> s32) with
// the whole arithmetic of int8_mm/math.h in the epilogue. A swapped tile computes y^T = w x^T: its
// first side runs along n, and its second side, which may be as small as 8, along m. The output is
// the same memory, in column-major order.
#pragma once

// Before all headers: a kernel of CUTLASS's can be launched early only if this is defined, or else
// it would not wait.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cuda/hopper/epilogue.cuh"
#include "int8_mm/cuda/hopper/instances.h"
#include "int8_mm/cuda/hopper/launcher.cuh"

namespace baraquant::int8_mm::hopper {

// Products of up to this many rows are launched before the kernel ends that quantizes the input: on
// an H200 that saves 0.4 to 1.9 us. With more rows it makes no difference.
constexpr int64_t kMaxEarlyRows = 128;

template <HopperSchedule schedule>
struct ScheduleOf;
template <>
struct ScheduleOf<HopperSchedule::kPingpong> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};
template <>
struct ScheduleOf<HopperSchedule::kCooperative> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
};
template <>
struct ScheduleOf<HopperSchedule::kWarpSpecialized> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};

// A row of kHopperTiles in CUTLASS's types. There the first side of a swapped tile is along n.
template <HopperTile tile>
struct Tile {
  static constexpr HopperTileInfo kRow = info_of(tile);
  static constexpr bool swapped = kRow.swapped;
  static_assert(!swapped || kRow.cluster_m == 1);
  using Shape = cute::Shape<cute::Int<swapped ? kRow.n : kRow.m>,
                            cute::Int<swapped ? kRow.m : kRow.n>, cute::Int<kRow.k>>;
  using Cluster = cute::Shape<cute::Int<kRow.cluster_m>, cute::_1, cute::_1>;
  using Schedule = typename ScheduleOf<kRow.schedule>::Mainloop;
  using EpilogueSchedule = typename ScheduleOf<kRow.schedule>::Epilogue;
};

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
  using Output = typename Stored<T>::type;
  static constexpr int kOutputAlignment = 16 / sizeof(Output);
  static constexpr bool swapped = Tile::swapped;

  using OutputLayout =
      cute::conditional_t<swapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tile::Shape,
      typename Tile::Cluster, cutlass::epilogue::collective::EpilogueTileAuto, int32_t, float, void,
      OutputLayout, kOutputAlignment, Output, OutputLayout, kOutputAlignment,
      typename Tile::EpilogueSchedule,
      Rescale<Output, typename Tile::Shape, swapped>>::CollectiveOp;
  using EpilogueMemory = typename Epilogue::SharedStorage;
  static constexpr int kOfBlock = shared_memory_of_block(Tile::kRow.blocks);
  using Mainloop = AfterWait<typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, int8_t, cutlass::layout::RowMajor, 16,
      int8_t, cutlass::layout::ColumnMajor, 16, int32_t, typename Tile::Shape,
      typename Tile::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<kSharedMemory - kOfBlock +
                                                        int{sizeof(EpilogueMemory)}>,
      typename Tile::Schedule>::CollectiveOp>;
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
