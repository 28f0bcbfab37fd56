// SPDX-License-Identifier: BSD-3-Clause
// The product on Hopper: CUTLASS's warp-specialised kernels (TMA loads, wgmma s8 x s8 -> s32) with
// the whole arithmetic of int8_mm.h in the epilogue. Where `swapped`, the product is computed as
// y^T = w x^T, so that the tile's first side follows n and the second, which may be as small as 8,
// follows m; y is then the same memory in the other order.
#pragma once

#include <atomic>

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cutlass/kernels.h"
#include "int8_mm/cutlass/rescale.cuh"

namespace baraquant::int8_mm::hopper {

using cute::_1;
using cute::Int;

template <typename T>
struct Stored {
  using type = float;
};
template <>
struct Stored<Float16> {
  using type = cutlass::half_t;
};
template <>
struct Stored<BFloat16> {
  using type = cutlass::bfloat16_t;
};

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
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using Arguments = typename Kernel::Arguments;

  static auto order_of(Raster raster) {
    using Order = cutlass::gemm::kernel::detail::RasterOrderOptions;
    if (raster == Raster::kAny) return Order::Heuristic;
    return (raster == Raster::kAlongM) != swapped ? Order::AlongM : Order::AlongN;
  }

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
    a.epilogue.thread = call.rescaling;
    a.epilogue.ptr_D = static_cast<Output*>(call.output);
    cute::get<swapped ? 1 : 0>(a.epilogue.dD) = call.output_stride;
    a.scheduler.max_swizzle_size = call.swizzle;
    a.scheduler.raster_order = order_of(call.raster);
    a.hw_info.device_id = call.device;
    a.hw_info.sm_count = call.multiprocessors;
    return a;
  }

  static int64_t workspace_bytes(const Call& call) {
    return static_cast<int64_t>(Kernel::get_workspace_size(arguments(call)));
  }

  // The limit of shared memory is each device's own. Setting it twice does no harm.
  static bool allow_shared_memory(int device) {
    static std::atomic<uint64_t> allowed{0};
    const uint64_t bit = uint64_t(1) << (device % 64);
    if (device < 64 && (allowed.load(std::memory_order_relaxed) & bit)) return true;
    const auto result = cudaFuncSetAttribute(cutlass::device_kernel<Kernel>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             Kernel::SharedStorageSize);
    if (result == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
    return result == cudaSuccess;
  }

  static bool launch(const Call& call) {
    constexpr auto kSuccess = cutlass::Status::kSuccess;
    // Not Kernel::can_implement: it wants n itself to be a multiple of 16 bytes. TMA does not.
    const Arguments a = arguments(call);
    if (!allow_shared_memory(call.device)) return false;
    if (Kernel::initialize_workspace(a, call.workspace, call.stream) != kSuccess) return false;
    auto params = Kernel::to_underlying_arguments(a, call.workspace);
    return Adapter::run(params, call.stream) == kSuccess;
  }
};

template <typename T, typename Tile>
constexpr Kernel kernel_of() {
  return {&Gemm<T, Tile>::workspace_bytes, &Gemm<T, Tile>::launch};
}

template <typename Tile>
constexpr Kernels kernels_of() {
#ifdef BARAQUANT_ONE_OUTPUT_TYPE  // a check that it compiles, not a build
  return {{{}, {}, kernel_of<BFloat16, Tile>()}};
#else
  return {{kernel_of<float, Tile>(), kernel_of<Float16, Tile>(), kernel_of<BFloat16, Tile>()}};
#endif
}

}  // namespace baraquant::int8_mm::hopper
