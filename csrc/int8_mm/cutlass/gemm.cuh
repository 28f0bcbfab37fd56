// SPDX-License-Identifier: BSD-3-Clause
// The product on Hopper: CUTLASS's warp-specialised kernels (TMA loads, wgmma s8 x s8 -> s32) with
// the whole arithmetic of int8_mm.h in the epilogue. Where `swapped`, the product is computed as
// y^T = w x^T, so that the tile's first side follows n and the second, which may be as small as 8,
// follows m; y is then the same memory in the other order.
#pragma once

#include <atomic>

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_load_tma_warpspecialized.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cutlass/kernels.h"
#include "int8_mm/int8_mm.h"

namespace baraquant::int8_mm::hopper {

namespace fusion = cutlass::epilogue::fusion;
using cute::_0;
using cute::_1;
using cute::Int;
using cute::Stride;

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

// The last node of the epilogue's tree: from the sums and their factors to the output.
template <typename Output>
struct Rescale : fusion::Sm90VisitorImpl<> {
  using fusion::Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct ConsumerStoreCallbacks : fusion::EmptyConsumerStoreCallbacks {
    template <int size>
    using Integers = cutlass::Array<int32_t, size>;
    template <int size>
    using Floats = cutlass::Array<float, size>;

    template <int size>
    CUTLASS_DEVICE cutlass::Array<Output, size> visit(const Integers<size>& sums, int, int, int,
                                                      const Integers<size>& zero_point,
                                                      const Integers<size>& weight_sum,
                                                      const Floats<size>& weight_scale,
                                                      const Floats<size>& input_scale,
                                                      const Floats<size>& bias) {
      Floats<size> y;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < size; ++i) {
        y[i] = rescale(shift(sums[i], zero_point[i], weight_sum[i]), weight_scale[i],
                       input_scale[i], bias[i]);
      }
      return cutlass::NumericArrayConverter<Output, float, size>{}(y);
    }
  };

  template <bool of_source, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::ConsumerStoreArgs<Args...>&) {
    return ConsumerStoreCallbacks{};
  }
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

  // Vectors along m (each may be one number for all) and along n.
  template <typename V>
  using Rows = cute::conditional_t<
      swapped, fusion::Sm90RowBroadcast<0, typename Tile::Shape, V, V, Stride<_0, bool, _0>, 1>,
      fusion::Sm90ColBroadcast<0, typename Tile::Shape, V, V, Stride<bool, _0, _0>, 1>>;
  template <typename V>
  using Columns = cute::conditional_t<
      swapped, fusion::Sm90ColBroadcast<0, typename Tile::Shape, V, V, Stride<_1, _0, _0>, 1>,
      fusion::Sm90RowBroadcast<0, typename Tile::Shape, V, V, Stride<_0, _1, _0>, 1>>;
  using Tree = fusion::Sm90EVT<Rescale<Output>, Rows<int32_t>, Columns<int32_t>, Columns<float>,
                               Rows<float>, Columns<float>>;

  using OutputLayout =
      cute::conditional_t<swapped, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Tile::Shape,
      typename Tile::Cluster, cutlass::epilogue::collective::EpilogueTileAuto, int32_t, float, void,
      OutputLayout, kOutputAlignment, Output, OutputLayout, kOutputAlignment,
      typename Tile::EpilogueSchedule, Tree>::CollectiveOp;
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

  template <typename V>
  static typename Rows<V>::Arguments rows(const OfRows<V>& of) {
    typename Rows<V>::Arguments arguments{of.data, of.value, {}};
    cute::get<swapped ? 1 : 0>(args_stride(arguments)) = of.stride != 0;
    return arguments;
  }

  template <typename A>
  static auto& args_stride(A& arguments) {
    if constexpr (swapped) {
      return arguments.dRow;
    } else {
      return arguments.dCol;
    }
  }

  static typename Tree::Arguments tree(const Rescaling<float>& r) {
    return {rows(r.zero_point),
            typename Columns<int32_t>::Arguments{r.weight_sum, 0, {}},
            typename Columns<float>::Arguments{r.weight_scale, 0, {}},
            rows(r.input_scale),
            typename Columns<float>::Arguments{r.bias, kNoBias<float>, {}},
            {}};
  }

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
    a.epilogue.thread = tree(call.rescaling);
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
