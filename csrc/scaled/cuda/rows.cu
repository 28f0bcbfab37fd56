// SPDX-License-Identifier: BSD-3-Clause
// Quantizes rows. A block (or a warp, for short rows) takes one row after the other, so each thread
// keeps the factors of its columns in registers, and the maxima of its columns too; it loads the
// next row before it reduces this one. The row is read once. Rows that are too long for that, or
// are not aligned, are read twice by scaled_long_rows_kernel, the second time from the cache, and
// their maxima and sums come from scaled_maxima_kernel and column_sums_kernel.
#include <algorithm>

#include "machine/integers.h"
#include "scaled/cuda/kernels.h"
#include "scaled/cuda/numbers.cuh"

namespace baraquant::scaled {

constexpr int kRowThreads = 512;    // at most; leaves 128 registers for each
constexpr int kShortThreads = 256;  // of a block whose warps have rows of their own
constexpr int kMaxRowPacks = 2;

struct RowTeams {
  int threads;  // of a block
  int team;     // threads of a row: a warp, or the block
};

// Merges over the block; each thread gets the result. `slot` alternates from call to call, so that
// a slow warp still reads the last result while a fast one writes the next.
template <typename C>
__device__ __forceinline__ C greatest_of_block(C value, C (&of_warps)[2][kWarp], int slot) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / 32;
  value = greatest_of_warp(value);
  if (lane == 0) of_warps[slot][threadIdx.x / kWarp] = value;
  __syncthreads();
  return greatest_of_warp(lane < warps ? of_warps[slot][lane] : C(0));
}

// The columns of a thread: packs `team` threads apart.
template <typename T, int packs>
struct RowShare {
  NumberWords<T> words[packs];

  __device__ __forceinline__ void load(const Matrix<T>& x, int64_t m, int lane, int team) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int64_t n = int64_t(p * team + lane) * kPack<T>;
      if (m < x.rows && n < x.columns) {
        load_words(words[p], x.data, x.number(m, n));
      } else {
        words[p].fill({});
      }
    }
  }
};

template <typename T, bool stochastic>
__device__ __forceinline__ void write_pack(const RowsParams<T>& args, const NumberWords<T>& words,
                                           const ComputeType<T> (&factor)[kPack<T>],
                                           const Rounder<ComputeType<T>>& rounder,
                                           const Stream& stream, int64_t m, int64_t n) {
  using C = ComputeType<T>;
  uint32_t q[kPack<T>];
  by_speed<C>(rounder.is_fast(), [&](auto is_fast) {
    constexpr bool kFast = decltype(is_fast)::value;
    if constexpr (stochastic) {
      const PackBits<kPack<T>> bits(stream, args.input.number(m, n));
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        q[i] = rounder.template stochastic<kFast>(scaled<C>(words.get(i), factor[i]), bits.at(i));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        q[i] = rounder.template nearest<kFast>(scaled<C>(words.get(i), factor[i]));
      }
    }
  });
  using Result = Pack<uint32_t, kPack<T> / 4>;
  Result result;
#pragma unroll
  for (int i = 0; i < kPack<T> / 4; ++i) {
    result.at[i] = pack_bytes(q[4 * i], q[4 * i + 1], q[4 * i + 2], q[4 * i + 3]);
  }
  *reinterpret_cast<Result*>(args.values + m * args.input.columns + n) = result;
}

// Sums of neighbouring columns, written at the end of each piece of rows.
template <typename C, int size>
struct ColumnSums {
  C of[size];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < size; ++i) of[i] = C(0);
  }
  __device__ __forceinline__ void write(C* to) {
    constexpr int kStored = 16 / sizeof(C);
#pragma unroll
    for (int i = 0; i < size; i += kStored) {
      Pack<C, kStored> pack;
#pragma unroll
      for (int j = 0; j < kStored; ++j) pack.at[j] = of[i + j];
      *reinterpret_cast<Pack<C, kStored>*>(to + i) = pack;
    }
    clear();
  }
};

template <typename T, int packs, bool stochastic, bool with_maxima, bool with_sums>
__global__ void __launch_bounds__(kRowThreads)
    scaled_rows_kernel(const RowsParams<T> args, const int team) {
  using C = ComputeType<T>;
  constexpr int kSize = kPack<T>;
  __shared__ C of_warps[2][kWarp];
  const Matrix<T>& x = args.input;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % team;
  const int64_t teams = static_cast<int>(blockDim.x) / team;
  // A team takes every step-th row, or if there are sums every step-th piece of rows.
  const int64_t step = int64_t(gridDim.x) * teams;
  const auto row_after = [step](int64_t m) {
    if constexpr (!with_sums) return m + step;
    return (m + 1) % kPieceRows != 0 ? m + 1 : m + 1 + (step - 1) * kPieceRows;
  };
  const bool is_block = team > kWarp;
  const Stream stream = stochastic ? Stream::of(args.random) : Stream{};

  C factor[packs][kSize], maxima[packs][kSize];
  ColumnSums<C, kSize> sums[packs];
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    if (with_sums) sums[p].clear();
    const int64_t n = int64_t(p * team + lane) * kSize;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      factor[p][i] = n < x.columns ? args.factor[n + i] : C(0);
      maxima[p][i] = C(0);
    }
  }
  int64_t m = (blockIdx.x * teams + thread / team) * (with_sums ? kPieceRows : 1);
  RowShare<T, packs> next;
  next.load(x, m, lane, team);
  // NB: every warp of a block makes the same number of steps if the block is one team; otherwise
  // no warp waits for another.
  for (int slot = 0; m < x.rows; slot ^= 1) {
    const RowShare<T, packs> row = next;
    const int64_t next_row = row_after(m);
    next.load(x, next_row, lane, team);
    C greatest = C(0);
    const C row_factor = with_maxima ? args.row_factor[m] : C(0);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const T number = row.words[p].get(i);
        greatest = greater(greatest, scaled<C>(number, factor[p][i]));
        if (with_maxima) {
          maxima[p][i] = greater(maxima[p][i], scaled<C>(number, row_factor));
        }
        if (with_sums) sums[p].of[i] += to_compute<C>(number);
      }
    }
    greatest = is_block ? greatest_of_block(greatest, of_warps, slot) : greatest_of_warp(greatest);
    const C scale = scale_of<C>(bit_cast<Key<C>>(greatest));
    if (lane == 0) args.scale[m] = scale;
    const Rounder<C> rounder(scale);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int64_t n = int64_t(p * team + lane) * kSize;
      if (n < x.columns) {
        write_pack<T, stochastic>(args, row.words[p], factor[p], rounder, stream, m, n);
        if (with_sums && ((m + 1) % kPieceRows == 0 || m + 1 == x.rows)) {
          sums[p].write(args.sums + m / kPieceRows * x.columns + n);
        }
      }
    }
    m = next_row;
  }
  if constexpr (with_maxima) {
    __shared__ ColumnExchange<C, kSize> exchange[kRowThreads / kWarp];
    const int warp = thread / kWarp;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const int64_t n = int64_t(p * team + lane / kWarp * kWarp) * kSize;
      exchange[warp].raise_all(args.maxima + n, x.columns - n, maxima[p]);
    }
  }
}

template <typename T, bool stochastic>
__global__ void __launch_bounds__(kRowThreads) scaled_long_rows_kernel(const RowsParams<T> args) {
  using C = ComputeType<T>;
  __shared__ C of_warps[2][kWarp];
  const Matrix<T>& x = args.input;
  const Stream stream = stochastic ? Stream::of(args.random) : Stream{};
  for (int64_t m = blockIdx.x, slot = 0; m < x.rows; m += gridDim.x, slot ^= 1) {
    C greatest = C(0);
    for (int64_t n = threadIdx.x; n < x.columns; n += blockDim.x) {
      const C v = scaled<C>(x.data[x.number(m, n)], args.factor[n]);
      greatest = greater(greatest, v);
    }
    greatest = greatest_of_block(greatest, of_warps, static_cast<int>(slot));
    const C scale = scale_of<C>(bit_cast<Key<C>>(greatest));
    if (threadIdx.x == 0) args.scale[m] = scale;
    const Rounder<C> rounder(scale);
    for (int64_t n = threadIdx.x; n < x.columns; n += blockDim.x) {
      const int64_t number = x.number(m, n);
      const C v = scaled<C>(x.data[number], args.factor[n]);
      uint32_t q;
      by_speed<C>(rounder.is_fast(), [&](auto is_fast) {
        constexpr bool kFast = decltype(is_fast)::value;
        if constexpr (stochastic) {
          q = rounder.template stochastic<kFast>(v, random_bits(stream, number));
        } else {
          q = rounder.template nearest<kFast>(v);
        }
      });
      args.values[m * x.columns + n] = static_cast<int8_t>(q);
    }
  }
}

// ---- Launchers ----------------------------------------------------------------------------------

template <typename T, int packs, bool stochastic>
void launch_short_rows(const RowsParams<T>& args, const RowTeams& teams, const Place& place) {
  // Registers for two packs, their maxima and their sums would not suffice.
  constexpr bool kFindsBoth = packs == 1;
  auto kernel = &scaled_rows_kernel<T, packs, stochastic, false, false>;
  if (args.maxima && args.sums && kFindsBoth) {
    kernel = &scaled_rows_kernel<T, packs, stochastic, true, kFindsBoth>;
  } else if (args.maxima) {
    kernel = &scaled_rows_kernel<T, packs, stochastic, true, false>;
    if (args.sums) Cuda::sums(args.input, args.sums);
  } else if (args.sums) {
    kernel = &scaled_rows_kernel<T, packs, stochastic, false, true>;
  }
  // As many blocks as are resident, each of which loads its factors once.
  int resident = 1;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, teams.threads, 0);
  const int64_t grid = std::min(divide_up(args.input.rows, int64_t(teams.threads / teams.team)),
                                int64_t(place.multiprocessors) * std::max(resident, 1));
  kernel<<<static_cast<unsigned>(grid), teams.threads, 0, place.stream>>>(args, teams.team);
}

template <typename T, bool stochastic>
void launch_rows(const RowsParams<T>& args, const Place& place) {
  const Matrix<T>& x = args.input;
  const int64_t packs = divide_up(x.columns, kPack<T>);
  const bool fits = packs <= kRowThreads * kMaxRowPacks && has_whole_packs(x) &&
                    is_aligned(args.values, kPack<T>) && is_aligned(args.sums, 16);
  if (!fits) {
    const auto grid = static_cast<unsigned>(std::min<int64_t>(x.rows, 16 * place.multiprocessors));
    scaled_long_rows_kernel<T, stochastic><<<grid, kRowThreads, 0, place.stream>>>(args);
    if (args.maxima) Cuda::maxima(x, args.row_factor, args.maxima);
    if (args.sums) Cuda::sums(x, args.sums);
    return;
  }
  RowTeams teams;
  const int64_t of_thread = packs <= kRowThreads ? 1 : 2;
  teams.team = static_cast<int>(divide_up(divide_up(packs, of_thread), kWarp)) * kWarp;
  teams.threads = teams.team == kWarp ? kShortThreads : teams.team;
  of_thread == 1 ? launch_short_rows<T, 1, stochastic>(args, teams, place)
                 : launch_short_rows<T, 2, stochastic>(args, teams, place);
}

template <typename T>
void Cuda::rows(const RowsParams<T>& args) {
  args.random.state ? launch_rows<T, true>(args, current_place())
                    : launch_rows<T, false>(args, current_place());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template void Cuda::rows(const RowsParams<float>&);
template void Cuda::rows(const RowsParams<double>&);
template void Cuda::rows(const RowsParams<Float16>&);
template void Cuda::rows(const RowsParams<BFloat16>&);

}  // namespace baraquant::scaled
