// SPDX-License-Identifier: BSD-3-Clause
// What single and grouped products on Hopper have in common: their types, and the launch of a CUTLASS
// kernel.
#pragma once

#include <atomic>

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "int8_mm/cuda/hopper/epilogue.cuh"
#include "int8_mm/cuda/hopper/instances.h"

namespace baraquant::int8_mm::hopper {

template <typename T>
using Stored =
    std::conditional_t<std::is_same_v<T, BFloat16>, cutlass::bfloat16_t,
                       std::conditional_t<std::is_same_v<T, Float16>, cutlass::half_t, float>>;

template <HopperSchedule schedule, bool grouped>
struct ScheduleOf;
template <>
struct ScheduleOf<HopperSchedule::kPingpong, false> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};
template <>
struct ScheduleOf<HopperSchedule::kCooperative, false> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
};
template <>
struct ScheduleOf<HopperSchedule::kWarpSpecialized, false> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
};
template <>
struct ScheduleOf<HopperSchedule::kPingpong, true> {
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
};

// A row of kHopperTiles or kGroupedTiles in CUTLASS's types. There the first side of a swapped tile is
// along n, and the matrices of groups are given by pointers.
template <auto tile>
struct Tile {
  static constexpr auto kRow = info_of(tile);
  static constexpr bool swapped = kRow.swapped,
                        grouped = std::is_same_v<decltype(tile), GroupedTile>;
  static_assert(!swapped || (kRow.cluster_m == 1 && kRow.cluster_n == 1));
  using Shape = cute::Shape<cute::Int<swapped ? kRow.n : kRow.m>,
                            cute::Int<swapped ? kRow.m : kRow.n>, cute::Int<kRow.k>>;
  using Cluster = cute::Shape<cute::Int<kRow.cluster_m>, cute::Int<kRow.cluster_n>, cute::_1>;
  using Schedule = ScheduleOf<kRow.schedule, grouped>;
  template <typename Layout>
  using Given = cute::conditional_t<grouped, Layout*, Layout>;
  using InputLayout = Given<cutlass::layout::RowMajor>;
  using WeightLayout = Given<cutlass::layout::ColumnMajor>;
  using OutputLayout = cute::conditional_t<swapped, WeightLayout, InputLayout>;
};

template <typename T, typename Tile>
using EpilogueOf = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tile::Shape,
    typename Tile::Cluster, cutlass::epilogue::collective::EpilogueTileAuto, int32_t, float, void,
    typename Tile::OutputLayout, 16 / sizeof(T), Stored<T>, typename Tile::OutputLayout,
    16 / sizeof(T), typename Tile::Schedule::Epilogue,
    Rescale<Stored<T>, typename Tile::Shape, Tile::swapped, Tile::grouped>>::CollectiveOp;

// `carveout`: the bytes of shared memory that its stages do not take.
template <typename Tile, int carveout>
using MainloopOf = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, int8_t, typename Tile::InputLayout, 16,
    int8_t, typename Tile::WeightLayout, 16, int32_t, typename Tile::Shape, typename Tile::Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<carveout>,
    typename Tile::Schedule::Mainloop>::CollectiveOp;

// Launches a CUTLASS kernel.
template <typename Kernel>
struct Launcher {
  using Arguments = typename Kernel::Arguments;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // Each device has its own limit of shared memory. Setting it twice does no harm.
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

  // `early` needs a kernel of CUTLASS's that waits for the one before it.
  static bool launch(const Arguments& a, void* workspace, const Call& call, bool early) {
    constexpr auto kSuccess = cutlass::Status::kSuccess;
    // Kernel::can_implement would require n to be a multiple of 16 bytes, which TMA does not.
    if (!allow_shared_memory(call.device)) return false;
    if (Kernel::initialize_workspace(a, workspace, call.stream) != kSuccess) return false;
    auto params = Kernel::to_underlying_arguments(a, workspace);
    return Adapter::run(params, call.stream, nullptr, early) == kSuccess;
  }
};

template <typename Product>
constexpr Kernel kernel_of() {
  return {&Product::workspace_bytes, &Product::launch};
}

// Product<T, Tile>: Gemm or GroupedGemm, for outputs of type T.
template <template <typename, typename> class Product, typename Tile>
constexpr Kernels kernels_for_each_output() {
#ifdef BARAQUANT_ONE_OUTPUT_TYPE  // only to check that it compiles
  return {{{}, {}, kernel_of<Product<BFloat16, Tile>>()}};
#else
  return {{kernel_of<Product<float, Tile>>(), kernel_of<Product<Float16, Tile>>(),
           kernel_of<Product<BFloat16, Tile>>()}};
#endif
}

}  // namespace baraquant::int8_mm::hopper
