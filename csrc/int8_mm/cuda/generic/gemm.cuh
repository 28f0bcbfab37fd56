// SPDX-License-Identifier: BSD-3-Clause
// The product on every architecture from sm_80 on: mma.sync.m16n8k32 (PTX ISA, "Warp-level matrix
// instructions", section on integer operands) over tiles that are kept in a ring of buffers in
// shared memory. Any size and alignment is allowed: if k and the pointers are multiples of 16, the
// tiles are copied asynchronously, else through registers, from the 16-byte words around them.
#pragma once

#include <iterator>
#include <utility>

#include "int8_mm/cuda/generic/copier.cuh"
#include "int8_mm/cuda/groups.cuh"
#include "int8_mm/cuda/scale_vectors.cuh"
#include "machine/early_launch.cuh"

namespace baraquant::int8_mm {

// --- kernels -------------------------------------------------------------------------------------

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

// What a warp multiplies in a step.
template <typename G>
struct Fragments {
  uint32_t a[G::fragments_m][4], b[G::fragments_n][2];

  __device__ __forceinline__ void load(const uint8_t* stage, const WarpPlace<G>& warp, int step) {
    const int column = (step * G::warps_k + warp.k) * 2;
#pragma unroll
    for (int i = 0; i < G::fragments_m; ++i) {
      load_input_fragment<G::chunks>(a[i], stage, warp.m + i * 16, column);
    }
#pragma unroll
    for (int j = 0; j < G::fragments_n; j += 2) {
      load_weight_fragments<G::chunks>(b[j], b[j + 1], stage + G::input_bytes, warp.n + j * 8,
                                       column);
    }
  }

  template <bool is_unsigned>
  __device__ __forceinline__ void multiply(Sums<G>& sums) const {
#pragma unroll
    for (int i = 0; i < G::fragments_m; ++i) {
#pragma unroll
      for (int j = 0; j < G::fragments_n; ++j) {
        multiply_fragments<is_unsigned>(sums.at[i][j], a[i], b[j]);
      }
    }
  }
};

// Adds up the sums of the warps that have the same place and different shares of the depth. The
// first of these warps gets the result.
template <typename G>
__device__ __forceinline__ void add_shares(Sums<G>& sums, int* shared, int share) {
  constexpr int kThreads = G::threads / G::warps_k;
  constexpr int kSums = sizeof(Sums<G>) / sizeof(int);
  static_assert((G::warps_k - 1) * kThreads * kSums * 4 <= G::bytes);
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

// While the fragments of a step are multiplied, those of the next one are loaded.
template <typename G, bool is_unsigned>
__device__ __forceinline__ void multiply_aligned(Sums<G>& sums, const Copier<G>& copier,
                                                 const WarpPlace<G>& warp) {
  static_assert(G::steps % 2 == 0);
  const int tiles = copier.tiles();
#pragma unroll
  for (int s = 0; s < G::stages - 1; ++s) {
    if (s < tiles) copier.copy_async(s);
    commit_copies();
  }
  wait_for_copies<G::stages - 2>();
  __syncthreads();
  Fragments<G> fragments[2];
  fragments[0].load(copier.stage(0), warp, 0);
  for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
    for (int s = 0; s < G::steps; ++s) {
      const bool is_last = s == G::steps - 1;
      if (is_last) {  // the next tile has been copied, and no thread loads from this one any more
        wait_for_copies<G::stages - 2>();
        __syncthreads();
      }
      fragments[(s + 1) % 2].load(copier.stage(is_last ? tile + 1 : tile), warp,
                                  is_last ? 0 : s + 1);
      if (s == 0) {
        const int next = tile + G::stages - 1;
        if (next < tiles) copier.copy_async(next);
        commit_copies();
      }
      fragments[s % 2].template multiply<is_unsigned>(sums);
    }
  }
  wait_for_copies<0>();
}

template <typename G, bool is_unsigned>
__device__ __forceinline__ void multiply_unaligned(Sums<G>& sums, const Copier<G>& copier,
                                                   const WarpPlace<G>& warp) {
  const int tiles = copier.tiles();
  UnalignedChunk chunks[G::loads];
  if (tiles > 0) {
    copier.read(chunks, 0);
    copier.write(chunks, 0);
  }
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();
    if (tile + 1 < tiles) copier.read(chunks, tile + 1);
#pragma unroll
    for (int s = 0; s < G::steps; ++s) {
      Fragments<G> fragments;
      fragments.load(copier.stage(tile), warp, s);
      fragments.template multiply<is_unsigned>(sums);
    }
    if (tile + 1 < tiles) copier.write(chunks, tile + 1);
  }
}

// Of every 16 x 8 fragment, a thread has two neighbours in each of the rows lane / 4 and
// lane / 4 + 8.
template <typename G, typename T>
__device__ __forceinline__ void write_sums(const Sums<G>& sums, const ProductParams<T>& args,
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
__device__ __forceinline__ void compute_tile(const ProductParams<T>& args, const TilePlace& place) {
  extern __shared__ __align__(128) uint8_t generic_memory[];
  const WarpPlace<G> warp(static_cast<int>(threadIdx.x) / 32);
  const Copier<G> copier(args.operands, place, generic_memory);
  Sums<G> sums{};
  if constexpr (aligned) {
    multiply_aligned<G, is_unsigned>(sums, copier, warp);
  } else {
    multiply_unaligned<G, is_unsigned>(sums, copier, warp);
  }
  if constexpr (G::warps_k > 1) {
    add_shares(sums, reinterpret_cast<int*>(generic_memory), warp.k);
    if (warp.k > 0) return;
  }
  write_sums(sums, args, place, warp);
}

template <typename G, typename T, bool is_unsigned, bool aligned>
__global__ void __launch_bounds__(G::threads, aligned ? G::blocks : 1)
    generic_kernel(const ProductParams<T> args) {
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
__device__ __forceinline__ void clear_tile(const ProductParams<T>& args, const TilePlace& place) {
  const Operands& f = args.operands;
  for (int i = static_cast<int>(threadIdx.x); i < G::m * G::n; i += G::threads) {
    const int64_t m = place.m + i / G::n, n = place.n + i % G::n;
    if (m < f.m && n < f.n) args.output[m * f.n + n] = T{};
  }
}

// Each group's tiles are computed like those of a product whose input ends with the group. `rows`
// is the number of rows of tiles of the grid.
template <typename G, typename T, bool is_unsigned, bool aligned>
__global__ void __launch_bounds__(G::threads, aligned ? G::blocks : 1)
    grouped_generic_kernel(ProductParams<T> args, int64_t rows) {
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
void launch_generic_kernel(const ProductParams<T>& args, cudaStream_t stream) {
  const Operands& f = args.operands;
  const int64_t columns = divide_up(f.n, G::n);
  const auto launch = [&](auto kernel, int64_t rows, auto... more) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, G::bytes);
    const auto blocks = static_cast<unsigned>(rows * columns);
    kernel<<<blocks, G::threads, G::bytes, stream>>>(args, more...);
  };
  if (f.is_grouped()) {
    const int64_t rows = max_group_tiles<G>(f);
    launch(&grouped_generic_kernel<G, T, is_unsigned, aligned>, rows, rows);
  } else {
    launch(&generic_kernel<G, T, is_unsigned, aligned>, divide_up(f.m, G::m));
  }
}

template <GenericTile tile, typename T>
void launch_generic_tile(const ProductParams<T>& args, cudaStream_t stream) {
  using G = Geometry<tile>;
  const Operands& f = args.operands;
  const bool aligned = has_aligned_rows(f.input, f.k) && has_aligned_rows(f.weight, f.k);
  with_flags(
      [&](auto is_unsigned, auto is_aligned) {
        launch_generic_kernel<G, T, is_unsigned(), is_aligned()>(args, stream);
      },
      f.is_unsigned, aligned);
}

template <typename T>
void launch_generic(GenericTile tile, const ProductParams<T>& args, cudaStream_t stream) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    ((kGenericTiles[i].tile == tile ? launch_generic_tile<kGenericTiles[i].tile>(args, stream)
                                    : void()),
     ...);
  }(std::make_index_sequence<std::size(kGenericTiles)>());
}

}  // namespace baraquant::int8_mm
