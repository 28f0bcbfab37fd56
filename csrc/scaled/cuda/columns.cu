// SPDX-License-Identifier: BSD-3-Clause
// Quantizes and writes the transpose (tile.cuh): columns with scales of their own, or rows whose
// scales are given. Eight lanes read 128 bytes or more of a row, a warp 16 rows; each lane has four
// neighbouring rows of some columns, whose bytes are a word of the tile. The input is read once. A
// block goes down the matrix; it loads the next tile before it writes this one.
#include <algorithm>

#include "machine/integers.h"
#include "scaled/cuda/kernels.h"
#include "scaled/cuda/numbers.cuh"
#include "scaled/cuda/tile.cuh"

namespace baraquant::scaled {

constexpr int kAcross = 8;  // lanes beside each other
constexpr int kTilesOfBlock = 4;

// The columns of a lane, and of a tile.
template <typename T>
constexpr int kLaneColumns = kPack<T> < kOctet ? kPack<T> : kOctet;
template <typename T>
constexpr int kTileColumns = kAcross * kLaneColumns<T>;

// Four neighbouring rows of a lane's columns.
template <typename T>
struct LaneRows {
  Words<T, kLaneColumns<T>> at[kRowsOfLane];

  __device__ __forceinline__ void load(const Matrix<T>& x, int64_t m, int64_t n, int count,
                                       bool whole) {
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      at[r].fill(T{});
      if (m + r < x.rows && count > 0) {
        baraquant::load(at[r], x.data, x.number(m + r, n), count, whole);
      }
    }
  }
};

// The place of a lane in a tile.
template <typename T>
struct LanePlace {
  int across, word;  // word: of four rows
  int64_t n;         // its first column
  int count;         // how many of its columns exist

  __device__ __forceinline__ explicit LanePlace(int64_t columns) {
    const int thread = static_cast<int>(threadIdx.x);
    across = thread % kAcross;
    word = thread / kAcross;
    n = int64_t(blockIdx.x) * kTileColumns<T> + across * kLaneColumns<T>;
    const int64_t left = columns - n;
    count = left >= kLaneColumns<T> ? kLaneColumns<T> : left > 0 ? static_cast<int>(left) : 0;
  }
};

// Calls quantized(rows, m, bytes) for the lane's rows m .. m + 3 of each tile of the block, which
// sets bytes[i] to those of the lane's column i; writes them transposed.
template <typename T, typename Quantized>
__device__ __forceinline__ void transpose_tiles(const Matrix<T>& x, const LanePlace<T>& place,
                                                bool whole, int8_t* values, int piece,
                                                const Quantized& quantized) {
  constexpr int kSize = kLaneColumns<T>, kColumns = kTileColumns<T>;
  __shared__ ByteTile<kColumns> tiles[2];
  const TileTarget target{values, x.rows, x.columns, piece};
  const int64_t step = int64_t(gridDim.y) * kTileRows;
  const int64_t of_lane = place.word * kRowsOfLane;
  // NB: a slow warp still writes from the other tile while a fast one fills this one.
  int slot = 0;
  for (int64_t top = int64_t(blockIdx.y) * kTileRows; top < x.rows; top += step, slot ^= 1) {
    LaneRows<T> rows;
    rows.load(x, top + of_lane, place.n, place.count, whole);
    uint32_t bytes[kSize];
    quantized(rows, top + of_lane, bytes);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      tiles[slot].at(place.across * kSize + i, place.word) = bytes[i];
    }
    __syncthreads();
    write_tile(tiles[slot], target, int64_t(blockIdx.x) * kColumns, top);
  }
}

template <typename Params>
struct TileLaunch {
  Params args;
  bool whole;
  int piece;  // TileTarget
};

template <typename T, bool stochastic, bool with_sums>
__global__ void __launch_bounds__(kTileThreads, 3)
    scaled_columns_kernel(const TileLaunch<ColumnsParams<T>> launch) {
  using C = ComputeType<T>;
  constexpr int kSize = kLaneColumns<T>, kColumns = kTileColumns<T>;
  __shared__ C scales[kColumns];
  const ColumnsParams<T>& args = launch.args;
  const Matrix<T>& x = args.input;
  const LanePlace<T> place(x.columns);
  const Stream stream = stochastic ? Stream::of(args.random) : Stream{};

  if (const int column = static_cast<int>(threadIdx.x); column < kColumns) {
    const int64_t n = int64_t(blockIdx.x) * kColumns + column;
    C scale = C(1);
    if (n < x.columns) {
      scale = scale_of<C>(bit_cast<Key<C>>(args.maxima[n]));
      if (blockIdx.y == 0) args.scale[n] = scale;
    }
    scales[column] = scale;
  }
  __syncthreads();
  Rounder<C> rounders[kSize];
  int32_t sums[kSize] = {};
  bool fast = true;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    rounders[i] = Rounder<C>(scales[place.across * kSize + i]);
    fast = fast && rounders[i].is_fast();
  }
  const auto quantized = [&](const LaneRows<T>& rows, int64_t m, uint32_t (&bytes)[kSize]) {
    C factor[kRowsOfLane];
    uint32_t zero_points = 0;
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      const bool exists = m + r < x.rows;
      factor[r] = exists ? args.factor[m + r] : C(0);
      if (with_sums && exists) {
        zero_points |= static_cast<uint32_t>(args.zero_point[m + r] & 0xff) << (8 * r);
      }
    }
    by_speed<C>(fast, [&](auto is_fast) {
      constexpr bool kFast = decltype(is_fast)::value;
      const auto scaled_at = [&](int r, int i) { return scaled<C>(rows.at[r].get(i), factor[r]); };
      if constexpr (stochastic) {
        const PackBits<kSize> bits[kRowsOfLane] = {
            {stream, x.number(m, place.n)},
            {stream, x.number(m + 1, place.n)},
            {stream, x.number(m + 2, place.n)},
            {stream, x.number(m + 3, place.n)},
        };
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const auto q = [&](int r) {
            return rounders[i].template stochastic<kFast>(scaled_at(r, i), bits[r].at(i));
          };
          bytes[i] = pack_bytes(q(0), q(1), q(2), q(3));
        }
      } else {
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const auto q = [&](int r) {
            return rounders[i].template nearest<kFast>(scaled_at(r, i));
          };
          bytes[i] = pack_bytes(q(0), q(1), q(2), q(3));
        }
      }
    });
    if constexpr (with_sums) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        sums[i] = __dp4a(static_cast<int>(bytes[i]), static_cast<int>(zero_points), sums[i]);
      }
    }
  };
  transpose_tiles(x, place, launch.whole, args.values, launch.piece, quantized);
  if constexpr (with_sums) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      int32_t sum = sums[i];
#pragma unroll
      for (int step = kAcross; step < kWarp; step *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
      }
      if (threadIdx.x % kWarp < kAcross && i < place.count) atomicAdd(args.sums + place.n + i, sum);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads, 3)
    quantize_given_transposed_kernel(const TileLaunch<GivenParams<T>> launch) {
  using C = ComputeType<T>;
  constexpr int kSize = kLaneColumns<T>;
  const GivenParams<T>& args = launch.args;
  const LanePlace<T> place(args.input.columns);
  const auto quantized = [&](const LaneRows<T>& rows, int64_t m, uint32_t (&bytes)[kSize]) {
    Rounder<C> rounders[kRowsOfLane];
    bool fast = true;
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      const C scale = m + r < args.input.rows ? args.scale[m + r] : C(1);
      rounders[r] = Rounder<C>(scale, args.range);
      fast = fast && rounders[r].is_fast();
    }
    by_speed<C>(fast, [&](auto is_fast) {
      constexpr bool kFast = decltype(is_fast)::value;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const auto q = [&](int r) {
          return rounders[r].template nearest<kFast>(to_compute<C>(rows.at[r].get(i)));
        };
        bytes[i] = pack_bytes(q(0), q(1), q(2), q(3));
      }
    });
  };
  transpose_tiles(args.input, place, launch.whole, args.values, launch.piece, quantized);
}

// ---- Launchers ----------------------------------------------------------------------------------

// A block takes several tiles below each other, if there are enough for all multiprocessors.
template <typename T>
dim3 tile_grid(const Matrix<T>& x, int multiprocessors) {
  const int64_t wide = divide_up(x.columns, kTileColumns<T>), high = divide_up(x.rows, kTileRows);
  const int64_t of_block =
      std::clamp<int64_t>(wide * high / (3 * multiprocessors), 1, kTilesOfBlock);
  return {static_cast<unsigned>(wide),
          static_cast<unsigned>(std::min<int64_t>(divide_up(high, of_block), 65535))};
}

template <typename Params>
void launch_tiles(void (*kernel)(const TileLaunch<Params>), const Params& args) {
  const auto& x = args.input;
  const Place place = current_place();
  kernel<<<tile_grid(x, place.multiprocessors), kTileThreads, 0, place.stream>>>(
      TileLaunch<Params>{args, has_whole_packs(x), piece_of(args.values, x.rows)});
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T, bool stochastic>
void launch_columns(const ColumnsParams<T>& args) {
  auto kernel = args.zero_point ? &scaled_columns_kernel<T, stochastic, true>
                                : &scaled_columns_kernel<T, stochastic, false>;
  launch_tiles(kernel, args);
}

template <typename T>
void Cuda::columns(const ColumnsParams<T>& args) {
  args.random.state ? launch_columns<T, true>(args) : launch_columns<T, false>(args);
}

template <typename T>
void Cuda::given(const GivenParams<T>& args) {
  launch_tiles(&quantize_given_transposed_kernel<T>, args);
}

#define BARAQUANT_COLUMNS(T)                            \
  template void Cuda::columns(const ColumnsParams<T>&); \
  template void Cuda::given(const GivenParams<T>&);
BARAQUANT_COLUMNS(float)
BARAQUANT_COLUMNS(double)
BARAQUANT_COLUMNS(Float16)
BARAQUANT_COLUMNS(BFloat16)

}  // namespace baraquant::scaled
