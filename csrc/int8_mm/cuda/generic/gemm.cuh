// SPDX-License-Identifier: BSD-3-Clause
// The product on every architecture from sm_80 on: mma.sync.m16n8k32 (PTX ISA, "Warp-level matrix
// instructions", section on integer operands) over tiles that are kept in a ring of buffers in
// shared memory. Any size and alignment is allowed: if k and the pointers are multiples of 16, the
// tiles are copied asynchronously, else through registers, from the 16-byte words around them.
#pragma once

#include "int8_mm/cuda/generic/fragments.cuh"
#include "int8_mm/cuda/groups.cuh"
#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/scale_vectors.cuh"
#include "int8_mm/cuda/unaligned.cuh"

namespace baraquant::int8_mm {

// --- types ---------------------------------------------------------------------------------------

// A block computes an m x n tile of the output, and advances k bytes along the depth at a time. Its
// warps divide the tile into warps_m x warps_n parts. If warps_k > 1 they divide the depth too, and
// add up their sums at the end.
template <int m_, int n_, int k_, int warps_m_, int warps_n_, int warps_k_, int stages_>
struct Geometry {
  static constexpr int m = m_, n = n_, k = k_;
  static constexpr int warps_m = warps_m_, warps_n = warps_n_, warps_k = warps_k_;
  static constexpr int stages = stages_;
  static constexpr int threads = 32 * warps_m * warps_n * warps_k;
  static constexpr int warp_m = m / warps_m, warp_n = n / warps_n;
  static constexpr int fragments_m = warp_m / 16, fragments_n = warp_n / 8;
  static constexpr int chunks = k / kChunk;       // chunks in a row of a tile
  static constexpr int steps = k / 32 / warps_k;  // steps of a warp for each tile
  static constexpr int input_bytes = m * k, stage_bytes = (m + n) * k;
  static constexpr int loads = (m + n) * chunks / threads;  // loads of a thread for each tile
  static_assert(warp_m % 16 == 0 && warp_n % 16 == 0 && steps * 32 * warps_k == k);
  static_assert((m + n) * chunks % threads == 0 && stages * stage_bytes <= 48 << 10);
};

template <GenericTile tile>
struct GeometryOf;
template <>
struct GeometryOf<GenericTile::k128x128> {
  using type = Geometry<128, 128, 64, 2, 4, 1, 3>;
};
template <>
struct GeometryOf<GenericTile::k64x64> {
  using type = Geometry<64, 64, 128, 2, 2, 2, 3>;
};
template <>
struct GeometryOf<GenericTile::k16x32> {
  using type = Geometry<16, 32, 256, 1, 1, 4, 4>;
};

// --- kernels -------------------------------------------------------------------------------------

// Copies tiles into shared memory: first the input's rows, then the weight's.
template <typename G>
struct Copier {
  const Operands& f;
  TilePlace place;
  uint8_t* shared;

  // The chunk that this thread loads as its number i.
  struct Chunk {
    const uint8_t* base;
    int64_t row, rows, at;  // the chunk begins `at` bytes into the row
    int target;             // its offset in the stage
  };

  __device__ __forceinline__ Chunk chunk(int i, int64_t depth) const {
    const int index = i * G::threads + static_cast<int>(threadIdx.x);
    const int row = index / G::chunks, column = index % G::chunks;
    const bool of_input = row < G::m;
    return {static_cast<const uint8_t*>(of_input ? f.input : f.weight),
            of_input ? place.m + row : place.n + row - G::m, of_input ? f.m : f.n,
            depth + column * kChunk, swizzled<G::chunks>(row, column)};
  }

  __device__ __forceinline__ void copy_async(int stage, int64_t depth) const {
#pragma unroll
    for (int i = 0; i < G::loads; ++i) {
      const Chunk c = chunk(i, depth);
      const bool inside = c.row < c.rows && c.at < f.k;
      copy_chunk_async(shared + stage * G::stage_bytes + c.target,
                       inside ? c.base + c.row * f.k + c.at : c.base, inside);
    }
  }

  __device__ __forceinline__ void read(UnalignedChunk (&chunks)[G::loads], int64_t depth) const {
#pragma unroll
    for (int i = 0; i < G::loads; ++i) {
      const Chunk c = chunk(i, depth);
      const int64_t left = c.row < c.rows ? f.k - c.at : 0;
      chunks[i].read(c.base, c.rows * f.k, c.row * f.k + c.at, left);
    }
  }

  __device__ __forceinline__ void write(const UnalignedChunk (&chunks)[G::loads], int stage) const {
#pragma unroll
    for (int i = 0; i < G::loads; ++i) {
      *reinterpret_cast<uint4*>(shared + stage * G::stage_bytes + chunk(i, 0).target) =
          chunks[i].bytes();
    }
  }
};

template <typename G>
struct Sums {
  int at[G::fragments_m][G::fragments_n][4];
};

// Where a warp works: its first row and column of the tile, and its share of the depth.
template <typename G>
struct WarpPlace {
  int m, n, k;

  __device__ __forceinline__ explicit WarpPlace(int warp)
      : m(warp % G::warps_m * G::warp_m),
        n(warp / G::warps_m % G::warps_n * G::warp_n),
        k(warp / (G::warps_m * G::warps_n)) {}
};

template <typename G, bool is_unsigned>
__device__ __forceinline__ void multiply_stage(Sums<G>& sums, const uint8_t* stage,
                                               const WarpPlace<G>& warp) {
#pragma unroll
  for (int s = 0; s < G::steps; ++s) {
    const int column = (s * G::warps_k + warp.k) * 2;
    uint32_t a[G::fragments_m][4], b[G::fragments_n][2];
#pragma unroll
    for (int i = 0; i < G::fragments_m; ++i) {
      load_input_fragment<G::chunks>(a[i], stage, warp.m + i * 16, column);
    }
#pragma unroll
    for (int j = 0; j < G::fragments_n; j += 2) {
      load_weight_fragments<G::chunks>(b[j], b[j + 1], stage + G::input_bytes, warp.n + j * 8,
                                       column);
    }
#pragma unroll
    for (int i = 0; i < G::fragments_m; ++i) {
#pragma unroll
      for (int j = 0; j < G::fragments_n; ++j) {
        multiply_fragments<is_unsigned>(sums.at[i][j], a[i], b[j]);
      }
    }
  }
}

// Adds up the sums of the warps that have the same place and different shares of the depth. The
// first of these warps gets the result.
template <typename G>
__device__ __forceinline__ void add_shares(Sums<G>& sums, int* shared, int share) {
  constexpr int kThreads = G::threads / G::warps_k;
  constexpr int kSums = sizeof(Sums<G>) / sizeof(int);
  static_assert((G::warps_k - 1) * kThreads * kSums * 4 <= G::stages * G::stage_bytes);
  int* flat = &sums.at[0][0][0];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  __syncthreads();  // the last tile has been read
  if (share > 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      shared[((share - 1) * kSums + i) * kThreads + thread] = flat[i];
    }
  }
  __syncthreads();
  if (share > 0) return;
#pragma unroll
  for (int other = 0; other < G::warps_k - 1; ++other) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) flat[i] += shared[(other * kSums + i) * kThreads + thread];
  }
}

template <typename G, bool is_unsigned>
__device__ __forceinline__ void multiply_aligned(Sums<G>& sums, const Copier<G>& copier,
                                                 const WarpPlace<G>& warp) {
  const int tiles = static_cast<int>((copier.f.k + G::k - 1) / G::k);
#pragma unroll
  for (int s = 0; s < G::stages - 1; ++s) {
    if (s < tiles) copier.copy_async(s, int64_t(s) * G::k);
    commit_copies();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies<G::stages - 2>();
    __syncthreads();  // all copies have arrived, and no thread reads what is overwritten next
    const int next = tile + G::stages - 1;
    if (next < tiles) copier.copy_async(next % G::stages, int64_t(next) * G::k);
    commit_copies();
    multiply_stage<G, is_unsigned>(sums, copier.shared + tile % G::stages * G::stage_bytes, warp);
  }
  wait_for_copies<0>();
}

template <typename G, bool is_unsigned>
__device__ __forceinline__ void multiply_unaligned(Sums<G>& sums, const Copier<G>& copier,
                                                   const WarpPlace<G>& warp) {
  const int tiles = static_cast<int>((copier.f.k + G::k - 1) / G::k);
  UnalignedChunk chunks[G::loads];
  if (tiles > 0) {
    copier.read(chunks, 0);
    copier.write(chunks, 0);
  }
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();
    if (tile + 1 < tiles) copier.read(chunks, int64_t(tile + 1) * G::k);
    multiply_stage<G, is_unsigned>(sums, copier.shared + tile % G::stages * G::stage_bytes, warp);
    if (tile + 1 < tiles) copier.write(chunks, (tile + 1) % G::stages);
  }
}

// Of every 16 x 8 fragment, a thread has two neighbours in each of the rows lane / 4 and
// lane / 4 + 8.
template <typename G, typename T>
__device__ __forceinline__ void write_sums(const Sums<G>& sums, const GenericParams<T>& args,
                                           const TilePlace& place, const WarpPlace<G>& warp) {
  using C = ComputeType<T>;
  const Operands& f = args.operands;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_m = place.m + warp.m + lane / 4;
  RowScales<C> rows[G::fragments_m * 2];
#pragma unroll
  for (int i = 0; i < G::fragments_m * 2; ++i) {
    const int64_t m = first_m + i * 8;
    rows[i] = RowScales<C>(args.rescaling, m < f.m ? m : 0);
  }
#pragma unroll
  for (int j = 0; j < G::fragments_n; ++j) {
    const int64_t n = place.n + warp.n + j * 8 + lane % 4 * 2;
    if (n >= f.n) return;
    const ColumnScales<C> column(args.rescaling, n);
    const ColumnScales<C> next(args.rescaling, n + 1 < f.n ? n + 1 : n);
    const int count = n + 1 < f.n ? 2 : 1;
#pragma unroll
    for (int i = 0; i < G::fragments_m * 2; ++i) {
      const int64_t m = first_m + i * 8;
      if (m >= f.m) break;
      const int* pair = &sums.at[i / 2][j][i % 2 * 2];
      T* target = args.output + m * f.n + n;
      const Pack<T, 2> y{output_of<T>(args.rescaling, pair[0], rows[i], column),
                         output_of<T>(args.rescaling, pair[1], rows[i], next)};
      store(y, target, 0, count, reinterpret_cast<uintptr_t>(target) % sizeof(y) == 0);
    }
  }
}

template <typename G, typename T, bool is_unsigned, bool aligned>
__device__ __forceinline__ void compute_tile(const GenericParams<T>& args, const TilePlace& place) {
  __shared__ __align__(128) uint8_t shared[G::stages * G::stage_bytes];
  const WarpPlace<G> warp(static_cast<int>(threadIdx.x) / 32);
  const Copier<G> copier{args.operands, place, shared};
  Sums<G> sums{};
  if constexpr (aligned) {
    multiply_aligned<G, is_unsigned>(sums, copier, warp);
  } else {
    multiply_unaligned<G, is_unsigned>(sums, copier, warp);
  }
  if constexpr (G::warps_k > 1) {
    add_shares(sums, reinterpret_cast<int*>(shared), warp.k);
    if (warp.k > 0) return;
  }
  write_sums(sums, args, place, warp);
}

template <typename G, typename T, bool is_unsigned, bool aligned>
__global__ void __launch_bounds__(G::threads, aligned ? 2 : 1)
    generic_kernel(const GenericParams<T> args) {
  compute_tile<G, T, is_unsigned, aligned>(
      args, place_of_tile(blockIdx.x, args.operands.m, args.operands.n, G::m, G::n));
}

// Returns the most rows of tiles that the groups can have: each group that has rows, and the rows
// after the last group, end with a tile that may contain a single row.
template <typename G>
int64_t max_group_tiles(const Operands& f) {
  return (f.m + (f.m < f.groups + 1 ? f.m : f.groups + 1) * (G::m - 1)) / G::m;
}

// Writes zeros into a tile of the output.
template <typename G, typename T>
__device__ __forceinline__ void clear_tile(const GenericParams<T>& args, const TilePlace& place) {
  const Operands& f = args.operands;
  for (int i = static_cast<int>(threadIdx.x); i < G::m * G::n; i += G::threads) {
    const int64_t m = place.m + i / G::n, n = place.n + i % G::n;
    if (m < f.m && n < f.n) args.output[m * f.n + n] = T{};
  }
}

// Each group's tiles are computed like those of a product whose input ends with the group. `rows`
// is the number of rows of tiles of the grid.
template <typename G, typename T, bool is_unsigned, bool aligned>
__global__ void __launch_bounds__(G::threads, aligned ? 2 : 1)
    grouped_generic_kernel(GenericParams<T> args, int64_t rows) {
  Operands& f = args.operands;
  TilePlace place = place_of_tile(blockIdx.x, rows * G::m, f.n, G::m, G::n);
  const GroupTile tile = find_group_tile(f, G::m, place.m / G::m);
  if (tile.group < 0) return;
  place.m = tile.begin;
  if (tile.group == f.groups) return clear_tile<G>(args, place);
  f.m = tile.end;
  f.choose_group(tile.group);
  args.rescaling.choose_group(tile.group, f.n);
  compute_tile<G, T, is_unsigned, aligned>(args, place);
}

// --- launchers -----------------------------------------------------------------------------------

template <typename G, typename T, bool is_unsigned, bool aligned>
void launch_generic_kernel(const GenericParams<T>& args, cudaStream_t stream) {
  const Operands& f = args.operands;
  const int64_t columns = divide_up(f.n, G::n);
  if (f.is_grouped()) {
    const int64_t rows = max_group_tiles<G>(f);
    grouped_generic_kernel<G, T, is_unsigned, aligned>
        <<<static_cast<unsigned>(rows * columns), G::threads, 0, stream>>>(args, rows);
  } else {
    generic_kernel<G, T, is_unsigned, aligned>
        <<<static_cast<unsigned>(divide_up(f.m, G::m) * columns), G::threads, 0, stream>>>(args);
  }
}

template <GenericTile tile, typename T>
void launch_generic_tile(const GenericParams<T>& args, cudaStream_t stream) {
  using G = typename GeometryOf<tile>::type;
  static_assert(G::m == kGenericTiles[static_cast<int>(tile)].m);
  static_assert(G::n == kGenericTiles[static_cast<int>(tile)].n);
  static_assert(G::k == kGenericTiles[static_cast<int>(tile)].k);
  const Operands& f = args.operands;
  const bool aligned =
      f.k % kChunk == 0 && is_aligned(f.input, kChunk) && is_aligned(f.weight, kChunk);
  auto launch = aligned ? &launch_generic_kernel<G, T, false, true>
                        : &launch_generic_kernel<G, T, false, false>;
  if (f.is_unsigned) {
    launch = aligned ? &launch_generic_kernel<G, T, true, true>
                     : &launch_generic_kernel<G, T, true, false>;
  }
  launch(args, stream);
}

template <typename T>
void launch_generic(GenericTile tile, const Operands& operands,
                    const Rescaling<ComputeType<T>>& rescaling, T* output, cudaStream_t stream) {
  const GenericParams<T> args{operands, rescaling, output};
  switch (tile) {
    case GenericTile::k128x128:
      return launch_generic_tile<GenericTile::k128x128>(args, stream);
    case GenericTile::k64x64:
      return launch_generic_tile<GenericTile::k64x64>(args, stream);
    case GenericTile::k16x32:
      return launch_generic_tile<GenericTile::k16x32>(args, stream);
  }
}

}  // namespace baraquant::int8_mm
