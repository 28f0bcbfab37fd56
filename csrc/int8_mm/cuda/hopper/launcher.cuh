// SPDX-License-Identifier: BSD-3-Clause
// What single and grouped products on Hopper have in common: the types of their outputs, and the
// launch of a CUTLASS kernel.
#pragma once

#include <atomic>

#include "cute/tensor.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "int8_mm/cuda/hopper/instances.h"

namespace baraquant::int8_mm::hopper {

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
