// SPDX-License-Identifier: BSD-3-Clause
// The product on Hopper: CUTLASS's warp-specialised kernels (TMA loads, wgmma s8 x s8 -> s32) with
// the whole arithmetic of int8_mm/math.h in the epilogue. Where `swapped`, the product is computed as
// y^T = w x^T, so that the tile's first side follows n and the second, which may be as small as 8,
// follows m; y is then the same memory in the other order.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cuda/hopper/epilogue.cuh"
#include "int8_mm/cuda/hopper/instances.h"
#include "int8_mm/cuda/hopper/launcher.cuh"

namespace baraquant::int8_mm::hopper {

using cute::_1;
using cute::Int;

template <int m_, int n_, int k_, int cluster_m, int cluster_n, bool swapped_, class Schedule_,
          class Scheduler_ = cutlass::gemm::PersistentScheduler>
struct Tile {
  using Shape = cute::Shape<Int<m_>, Int<n_>, Int<k_>>;
  using Cluster = cute::Shape<Int<cluster_m>, Int<cluster_n>, _1>;
  static constexpr bool swapped = swapped_;
  using Schedule = Schedule_;
  using Scheduler = Scheduler_;
  static constexpr bool is_cooperative =
      cute::is_same_v<Schedule, cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using EpilogueSchedule =
      cute::conditional_t<is_cooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                          cutlass::epilogue::TmaWarpSpecialized>;
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
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, int8_t, cutlass::layout::RowMajor, 16,
      int8_t, cutlass::layout::ColumnMajor, 16, int32_t, typename Tile::Shape,
      typename Tile::Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      typename Tile::Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, typename Tile::Scheduler>;
  using Arguments = typename Kernel::Arguments;

  static Arguments arguments(const Call& call) {
    const Factors& f = call.factors;
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
    a.scheduler.max_swizzle_size = call.swizzle;
    a.scheduler.raster_order = order_of(call.raster, swapped);
    a.hw_info.device_id = call.device;
    a.hw_info.sm_count = call.multiprocessors;
    return a;
  }

  static int64_t workspace_bytes(const Call& call) {
    return static_cast<int64_t>(Kernel::get_workspace_size(arguments(call)));
  }

  static bool launch(const Call& call) {
    return Launcher<Kernel>::launch(arguments(call), call.workspace, call);
  }
};

template <typename Tile>
constexpr Kernels kernels_of() {
  return kernels_for_each_output<Gemm, Tile>();
}

}  // namespace baraquant::int8_mm::hopper
