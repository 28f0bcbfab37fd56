// SPDX-License-Identifier: BSD-3-Clause
// How a block of the generic kernel is laid out, and how it gets its tiles into shared memory.
#pragma once

#include "int8_mm/cuda/generic/fragments.cuh"
#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/unaligned.cuh"

namespace baraquant::int8_mm {

// A block computes an m x n tile of the output, and advances k bytes along the depth at a time. Its
// warps divide the tile into warps_m x warps_n parts. If warps_k > 1 they divide the depth too, and
// add up their sums at the end.
template <GenericTile tile>
struct Geometry {
  static constexpr GenericTileInfo kRow = info_of(tile);
  static constexpr int m = kRow.m, n = kRow.n, k = kRow.k, stages = kRow.stages;
  static constexpr int warps_m = kRow.warps.m, warps_n = kRow.warps.n, warps_k = kRow.warps.k;
  static constexpr int threads = 32 * warps_m * warps_n * warps_k;
  static constexpr int warp_m = m / warps_m, warp_n = n / warps_n;
  static constexpr int fragments_m = warp_m / 16, fragments_n = warp_n / 8;
  static constexpr int chunks = k / kChunk;       // chunks in a row of a tile
  static constexpr int steps = k / 32 / warps_k;  // steps of a warp for each tile
  static constexpr int input_bytes = m * k, stage_bytes = (m + n) * k;
  static constexpr int bytes = stages * stage_bytes;        // of shared memory
  static constexpr int loads = (m + n) * chunks / threads;  // loads of a thread for each tile
  // How many blocks are to fit on a multiprocessor: the sums of a thread take many registers.
  static constexpr int blocks = threads * (warp_m * warp_n / 32) <= 128 * 128 ? 2 : 1;
  static_assert(warp_m % 16 == 0 && warp_n % 16 == 0 && steps * 32 * warps_k == k);
  static_assert((m + n) * chunks % threads == 0 && bytes <= 96 << 10);
};

// Copies tiles into shared memory: first the input's rows, then the weight's. All threads together
// copy some rows at once, and each of them chunks of one column.
template <typename G>
class Copier {
 public:
  __device__ __forceinline__ Copier(const Operands& f, const TilePlace& place, uint8_t* shared)
      : f_(f), place_(place), shared_(shared) {}

  // Along the depth.
  __device__ __forceinline__ int tiles() const {
    return static_cast<int>((f_.k + G::k - 1) / G::k);
  }

  // Where a tile lies in shared memory.
  __device__ __forceinline__ uint8_t* stage(int tile) const {
    return shared_ + tile % G::stages * G::stage_bytes;
  }

  __device__ __forceinline__ void copy_async(int tile) const {
    const bool inside = at(tile) < f_.k;
    const auto* const input =
        static_cast<const uint8_t*>(f_.input) + place_.m * f_.k + offset(tile);
    const auto* const weight =
        reinterpret_cast<const uint8_t*>(f_.weight) + place_.n * f_.k + offset(tile);
    const auto input_rows = static_cast<int>(min(f_.m - place_.m, int64_t{G::m}));
    const auto weight_rows = static_cast<int>(min(f_.n - place_.n, int64_t{G::n}));
    uint8_t* const to = stage(tile) + swizzled<G::chunks>(row(), column());
#pragma unroll
    for (int i = 0; i < kInputLoads; ++i) {
      const bool is_there = inside && row() + i * kRows < input_rows;
      copy_chunk_async(to + i * kRowsBytes,
                       is_there ? input + i * kRows * f_.k : static_cast<const uint8_t*>(f_.input),
                       is_there);
    }
#pragma unroll
    for (int i = 0; i < G::loads - kInputLoads; ++i) {
      const bool is_there = inside && row() + i * kRows < weight_rows;
      copy_chunk_async(
          to + (kInputLoads + i) * kRowsBytes,
          is_there ? weight + i * kRows * f_.k : reinterpret_cast<const uint8_t*>(f_.weight),
          is_there);
    }
  }

  // The same through registers, where rows begin anywhere.
  __device__ __forceinline__ void read(UnalignedChunk (&chunks)[G::loads], int tile) const {
#pragma unroll
    for (int i = 0; i < G::loads; ++i) {
      const bool of_input = i < kInputLoads;
      const void* const base = of_input ? f_.input : f_.weight;
      const int64_t rows = of_input ? f_.m : f_.n;
      const int64_t r = (of_input ? place_.m : place_.n - G::m) + row() + i * kRows;
      chunks[i].read(static_cast<const uint8_t*>(base), rows * f_.k, r * f_.k + at(tile),
                     r < rows ? f_.k - at(tile) : 0);
    }
  }

  __device__ __forceinline__ void write(const UnalignedChunk (&chunks)[G::loads], int tile) const {
    uint8_t* const to = stage(tile) + swizzled<G::chunks>(row(), column());
#pragma unroll
    for (int i = 0; i < G::loads; ++i) {
      *reinterpret_cast<uint4*>(to + i * kRowsBytes) = chunks[i].bytes();
    }
  }

 private:
  static constexpr int kRows = G::threads / G::chunks;  // that all threads copy at once
  static constexpr int kRowsBytes = kRows * G::k;
  static constexpr int kInputLoads = G::m / kRows;
  static_assert(kRows % 8 == 0 && G::m % kRows == 0);  // all have the same permutation

  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / G::chunks; }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % G::chunks;
  }
  // The depth at which the thread's chunks begin, and their offset from the block's first row.
  __device__ __forceinline__ int64_t at(int tile) const {
    return int64_t(tile) * G::k + column() * kChunk;
  }
  __device__ __forceinline__ int64_t offset(int tile) const { return row() * f_.k + at(tile); }

  const Operands& f_;
  TilePlace place_;
  uint8_t* shared_;
};

}  // namespace baraquant::int8_mm
