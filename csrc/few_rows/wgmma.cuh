// SPDX-License-Identifier: BSD-3-Clause
// Hopper's product of a warpgroup (wgmma), with the first matrix in registers: 64 rows by a tile of
// the second one in shared memory. Asynchronous: what it reads and adds to may be touched again only
// after a wait.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "machine/shared_memory.cuh"

#if defined(BARAQUANT_WITH_CUTLASS) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BARAQUANT_WGMMA(...) asm volatile(__VA_ARGS__)
#else  // nothing launches a kernel that was compiled without it
#define BARAQUANT_WGMMA(...) static_cast<void>(0)
#endif

namespace baraquant::wgmma {

// Whether the current device has these instructions, and they were compiled: Hopper alone has them.
inline bool is_available() {
#ifdef BARAQUANT_WITH_CUTLASS
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
#else
  return false;
#endif
}

// A tile in shared memory: rows of 128 bytes, whose 16-byte words are swizzled with the number of the
// row modulo 8. It begins at a multiple of 1024 bytes.
constexpr int kRowBytes = 128;
constexpr int kDepthBytes = 32;  // of a row, that an instruction multiplies

__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t word) {
  return row * kRowBytes + (word ^ row % 8) * 16;
}

// How an instruction is told of such a tile: this, plus kDepthPlace for each kDepthBytes of its rows.
__device__ __forceinline__ uint32_t place_of(uint32_t tile_address) {
  return tile_address / 16 | 1u << 16;
}
constexpr uint32_t kDepthPlace = kDepthBytes / 16;

__device__ __forceinline__ uint64_t descriptor(uint32_t place) {
  constexpr uint32_t kSwizzled128 = 1u << 30, kEightRows = 8 * kRowBytes / 16;
  return uint64_t{kSwizzled128 | kEightRows} << 32 | place;
}

// Before the first instruction, and after others have written its registers.
__device__ __forceinline__ void begin() {
  BARAQUANT_WGMMA("wgmma.fence.sync.aligned;\n" :: : "memory");
}

// Ends a group of instructions.
__device__ __forceinline__ void commit() {
  BARAQUANT_WGMMA("wgmma.commit_group.sync.aligned;\n" :: : "memory");
}

// Waits until at most `pending` groups are in flight.
template <int pending>
__device__ __forceinline__ void wait() {
  BARAQUANT_WGMMA("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}

// How many registers the threads of this warpgroup have from here on: fewer than at the launch, or
// more, when others have given them.
template <int count>
__device__ __forceinline__ void limit_registers() {
  BARAQUANT_WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void take_registers() {
  BARAQUANT_WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(count));
}

// The compiler may not move registers over this.
template <typename T, int count>
__device__ __forceinline__ void keep(T (&registers)[count]) {
#pragma unroll
  for (T& value : registers) {
    if constexpr (std::is_integral_v<T>) {
      asm volatile("" : "+r"(value)::"memory");
    } else {
      asm volatile("" : "+f"(value)::"memory");
    }
  }
}

// Writes to shared memory become visible to the instructions of threads that synchronise after this.
__device__ __forceinline__ void publish_writes() {
  BARAQUANT_WGMMA("fence.proxy.async.shared::cta;\n" :: : "memory");
}

enum class Types { kSigned, kUnsigned, kFloat16, kBFloat16 };  // kUnsigned: the second matrix

// clang-format off
#define BARAQUANT_SUMS_8(c, i) c(sums[i]), c(sums[i + 1]), c(sums[i + 2]), c(sums[i + 3]), \
    c(sums[i + 4]), c(sums[i + 5]), c(sums[i + 6]), c(sums[i + 7])
#define BARAQUANT_SUMS_32_AT(c, i) BARAQUANT_SUMS_8(c, i), BARAQUANT_SUMS_8(c, i + 8), \
    BARAQUANT_SUMS_8(c, i + 16), BARAQUANT_SUMS_8(c, i + 24)
#define BARAQUANT_SUMS_16(c) BARAQUANT_SUMS_8(c, 0), BARAQUANT_SUMS_8(c, 8)
#define BARAQUANT_SUMS_32(c) BARAQUANT_SUMS_32_AT(c, 0)
#define BARAQUANT_SUMS_64(c) BARAQUANT_SUMS_32_AT(c, 0), BARAQUANT_SUMS_32_AT(c, 32)
#define BARAQUANT_SUMS_128(c) BARAQUANT_SUMS_64(c), BARAQUANT_SUMS_32_AT(c, 64), \
    BARAQUANT_SUMS_32_AT(c, 96)
#define BARAQUANT_PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BARAQUANT_PLACES_32 BARAQUANT_PLACES_16 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BARAQUANT_PLACES_64 BARAQUANT_PLACES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BARAQUANT_PLACES_128 BARAQUANT_PLACES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define BARAQUANT_REST_16 "{%16, %17, %18, %19}, %20"
#define BARAQUANT_REST_32 "{%32, %33, %34, %35}, %36"
#define BARAQUANT_REST_64 "{%64, %65, %66, %67}, %68"
#define BARAQUANT_REST_128 "{%128, %129, %130, %131}, %132"
#define BARAQUANT_MULTIPLY(columns, count, types, tail, c)                                       \
  BARAQUANT_WGMMA("{\n.reg .pred adds;\nsetp.eq.b32 adds, 0, 0;\n"                                 \
                  "wgmma.mma_async.sync.aligned.m64n" columns types " {" BARAQUANT_PLACES_##count \
                  "}, " BARAQUANT_REST_##count ", adds" tail ";\n}\n"                             \
                  : BARAQUANT_SUMS_##count(c)                                                    \
                  : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(tile))
// clang-format on

// sums += rows * tile^T. Of `columns` rows of the tile; a thread has sums as of mma.sync, one tile of
// eight columns after the other.
template <Types types, typename Sum, int count>
__device__ __forceinline__ void multiply(Sum (&sums)[count], const uint32_t (&rows)[4],
                                         uint64_t tile) {
  static_assert(count == 16 || count == 32 || count == 64 || count == 128);
#define BARAQUANT_MULTIPLY_BY(types, tail, c)       \
  if constexpr (count == 16) {                      \
    BARAQUANT_MULTIPLY("32", 16, types, tail, c);   \
  } else if constexpr (count == 32) {               \
    BARAQUANT_MULTIPLY("64", 32, types, tail, c);   \
  } else if constexpr (count == 64) {               \
    BARAQUANT_MULTIPLY("128", 64, types, tail, c);  \
  } else {                                          \
    BARAQUANT_MULTIPLY("256", 128, types, tail, c); \
  }
  if constexpr (types == Types::kSigned) {
    BARAQUANT_MULTIPLY_BY("k32.s32.s8.s8", "", "+r")
  } else if constexpr (types == Types::kUnsigned) {
    BARAQUANT_MULTIPLY_BY("k32.s32.s8.u8", "", "+r")
  } else if constexpr (types == Types::kFloat16) {
    BARAQUANT_MULTIPLY_BY("k16.f32.f16.f16", ", 1, 1, 0", "+f")
  } else {
    BARAQUANT_MULTIPLY_BY("k16.f32.bf16.bf16", ", 1, 1, 0", "+f")
  }
#undef BARAQUANT_MULTIPLY_BY
}

#undef BARAQUANT_MULTIPLY

}  // namespace baraquant::wgmma
