// SPDX-License-Identifier: BSD-3-Clause
// Programmatic dependent launch, on Hopper and later: a kernel that is launched early begins while
// the kernel before it in the stream still runs, prepares itself, and then waits for it. That saves
// about a microsecond.
//
// A kernel that is launched early first waits and then lets the next one begin. So of the kernels
// before one that begins, only the last may still run, also where several in a row are early.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace baraquant {

// Lets the next kernel begin once every block of this one has called this or has ended, if it is
// launched early. It still waits for all that this kernel writes.
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A kernel that is launched early calls this before it touches memory. The kernels before it have
// then ended. NB: what they wrote may only be read by plain loads, not by __ldg: for this kernel it
// was not constant.
__device__ __forceinline__ void wait_for_last_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Whether the current device runs the kernel in a form that was compiled for Hopper or later. Where
// the driver makes it from PTX for an older chip, the functions above do nothing.
template <auto kernel>
bool is_compiled_for_hopper() {
  enum : uint8_t { kUnknown, kNo, kYes };
  constexpr int kDevices = 64;
  static std::atomic<uint8_t> known[kDevices];
  int device = 0;
  cudaGetDevice(&device);
  const bool has_place = device < kDevices;
  if (has_place && known[device] != kUnknown) return known[device] == kYes;
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaFuncAttributes attributes{};
  const bool found = major >= 9 && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
                     attributes.ptxVersion >= 90;
  if (has_place) known[device] = found ? kYes : kNo;
  return found;
}

// Whether a kernel of that many blocks gains from an early launch. NB: if a multiprocessor takes
// several, those that come while it is still busy go elsewhere, and one gets more than another.
inline bool gains_from_early_launch(int64_t blocks) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return blocks <= multiprocessors;
}

// Calls f with flags that are known when it is compiled, as std::true_type or std::false_type.
template <typename F>
void with_flags(const F& f) {
  f();
}
template <typename F, typename... Rest>
void with_flags(const F& f, bool flag, Rest... rest) {
  const auto next = [&](auto known) {
    with_flags([&](auto... others) { f(known, others...); }, rest...);
  };
  flag ? next(std::true_type()) : next(std::false_type());
}

// How a kernel is launched.
struct LaunchShape {
  dim3 grid;
  int threads;
  size_t shared_bytes = 0;         // that are allocated at the launch
  unsigned blocks_of_cluster = 1;  // more than one needs is_compiled_for_hopper()
};

// Launches a kernel that calls wait_for_last_kernel(). `early` needs is_compiled_for_hopper(). The
// blocks of a cluster are neighbours along z, or along x if the grid has no length along z.
template <typename... Args>
void launch_waiting(void (*kernel)(Args...), bool early, const LaunchShape& shape,
                    cudaStream_t stream, Args... args) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.blocks_of_cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    const unsigned blocks = shape.blocks_of_cluster;
    const bool along_z = shape.grid.z > 1;
    attributes[count++].val.clusterDim = {along_z ? 1 : blocks, 1, along_z ? blocks : 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace baraquant
