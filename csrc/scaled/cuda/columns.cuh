// SPDX-License-Identifier: BSD-3-Clause
// Quantizes columns and writes their transpose (tile.cuh). A warp keeps the scales of its columns in
// registers while its block goes down the matrix; the input is read once, 32 bytes of a row by each
// lane, which fill sectors, and the result is written in rows of 128 bytes.
#pragma once

#include <algorithm>

#include "scaled/cuda/rows.cuh"
#include "scaled/cuda/tile.cuh"

namespace baraquant::scaled {

template <typename T>
struct ColumnsLaunch {
  ColumnsParams<T> args;
  bool whole_packs;
  int piece;  // TileTarget
};

// A lane's four rows of a pack of columns, quantized: a word with four columns' bytes of a row.
template <typename T>
struct QuantizedPacks {
  uint32_t words[kRowsOfLane][kPack<T> / 4];
};

template <typename T, bool stochastic, bool with_sums>
__global__ void __launch_bounds__(kTileThreads)
    scaled_columns_kernel(const ColumnsLaunch<T> launch) {
  using C = ComputeType<T>;
  constexpr int kSize = kPack<T>, kColumns = kTileWarps * kSize;
  __shared__ ByteTile<kColumns> tile;
  const ColumnsParams<T>& args = launch.args;
  const Matrix<T>& x = args.input;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = int64_t(blockIdx.x) * kColumns, n = first + warp * kSize;
  const int count = static_cast<int>(max(int64_t(0), min(int64_t(kSize), x.columns - n)));
  const TileTarget target{args.values, x.rows, x.columns, launch.piece};
  const Stream stream = stochastic ? Stream::of(args.random) : Stream{};

  Rounder<C> rounders[kSize];
  int32_t sums[kSize] = {};
  bool fast = true;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    C scale = C(1);
    if (i < count) {
      scale = scale_of<C>(bit_cast<Key<C>>(args.maxima[n + i]));
      if (blockIdx.y == 0 && lane == 0) args.scale[n + i] = scale;
    }
    rounders[i] = Rounder<C>(scale);
    fast = fast && rounders[i].is_fast();
  }
  for (int64_t top = int64_t(blockIdx.y) * kTileRows; top < x.rows;
       top += int64_t(gridDim.y) * kTileRows) {
    const int64_t m = top + lane * kRowsOfLane;
    NumberWords<T> words[kRowsOfLane];
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      words[r].fill({});
      if (m + r >= x.rows || count == 0) continue;
      load(words[r], x.data, x.number(m + r, n), count, launch.whole_packs);
    }
    QuantizedPacks<T> packs;
    uint32_t zero_points = 0;
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      const bool exists = m + r < x.rows;
      const C factor = exists ? args.factor[m + r] : C(0);
      quantize_pack<T, stochastic>(
          words[r], [&](int i) -> const Rounder<C>& { return rounders[i]; },
          [&](int) { return factor; }, fast, stream, x.number(m + r, n), packs.words[r]);
      if (with_sums && exists) {
        zero_points |= static_cast<uint32_t>(args.zero_point[m + r] & 0xff) << (8 * r);
      }
    }
#pragma unroll
    for (int g = 0; g < kSize / 4; ++g) {
      uint32_t column[4];
      transpose_bytes(packs.words[0][g], packs.words[1][g], packs.words[2][g], packs.words[3][g],
                      column);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tile.words[warp * kSize + 4 * g + j][lane] = column[j];
        if (with_sums) {
          sums[4 * g + j] =
              __dp4a(static_cast<int>(column[j]), static_cast<int>(zero_points), sums[4 * g + j]);
        }
      }
    }
    __syncthreads();
    write_tile(tile, target, first, top);
    __syncthreads();
  }
  if constexpr (with_sums) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const int32_t sum = __reduce_add_sync(0xffffffffu, sums[i]);
      if (lane == 0 && i < count) atomicAdd(args.sums + n + i, sum);
    }
  }
}

// ---- Launcher -----------------------------------------------------------------------------------

template <typename T, bool stochastic>
void launch_columns(const ColumnsParams<T>& args, int multiprocessors, cudaStream_t stream) {
  const Matrix<T>& x = args.input;
  const ColumnsLaunch<T> launch{args, has_whole_packs(x), piece_of(args.values, x.rows)};
  const int64_t wide = divide_up(x.columns, kTileWarps * kPack<T>);
  const int64_t high = divide_up(x.rows, kTileRows);
  // Some waves of blocks, so that each block finds its scales once for several tiles.
  const int64_t wanted = std::max<int64_t>(divide_up(16 * multiprocessors, wide), 1);
  const dim3 grid(static_cast<unsigned>(wide),
                  static_cast<unsigned>(std::min(high, std::min<int64_t>(wanted, 65535))));
  auto kernel = args.zero_point ? &scaled_columns_kernel<T, stochastic, true>
                                : &scaled_columns_kernel<T, stochastic, false>;
  kernel<<<grid, kTileThreads, 0, stream>>>(launch);
}

}  // namespace baraquant::scaled
