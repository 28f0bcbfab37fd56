// SPDX-License-Identifier: BSD-3-Clause
// Maxima and sums of columns by passes of their own, where the pass that quantizes rows (rows.cu)
// does not find them.
#include <algorithm>

#include "machine/integers.h"
#include "scaled/cuda/kernels.h"
#include "scaled/cuda/numbers.cuh"

namespace baraquant::scaled {

constexpr int kReductionThreads = 256;

// Loads `pack` neighbours of row m from column n on; one, if packs are not whole.
template <typename T, int pack>
__device__ __forceinline__ void load_neighbours(Words<T, pack>& words, const Matrix<T>& x,
                                                int64_t m, int64_t n) {
  if constexpr (pack == 1) {
    words.fill(x.data[x.number(m, n)]);  // NB: words of one number are wider than it
  } else {
    load_words(words, x.data, x.number(m, n));
  }
}

// A thread takes `pack` columns (or one, if packs are not whole) of some rows.
template <typename T, int pack>
__global__ void __launch_bounds__(kReductionThreads)
    scaled_maxima_kernel(const Matrix<T> x, const ComputeType<T>* factor, ComputeType<T>* maxima) {
  using C = ComputeType<T>;
  constexpr int kUnroll = 4;  // rows that are loaded before the first is used
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t n = (int64_t(blockIdx.x) * kWarp + thread % kWarp) * pack;
  if (n >= x.columns) return;
  const int64_t step = int64_t(gridDim.y) * (kReductionThreads / kWarp);
  C greatest[pack] = {};
  for (int64_t m = int64_t(blockIdx.y) * (kReductionThreads / kWarp) + thread / kWarp; m < x.rows;
       m += kUnroll * step) {
    Words<T, pack> words[kUnroll];
    C factors[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = m + u * step < x.rows ? m + u * step : m;  // a row twice changes nothing
      load_neighbours(words[u], x, row, n);
      factors[u] = factor[row];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        greatest[i] = greater(greatest[i], scaled<C>(words[u].get(i), factors[u]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) raise(maxima + n + i, greatest[i]);
}

// A warp takes 32 packs of columns (or columns, if packs are not whole) of a piece of rows.
template <typename T, int pack>
__global__ void __launch_bounds__(kReductionThreads)
    column_sums_kernel(const Matrix<T> x, ComputeType<T>* sums) {
  using C = ComputeType<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t n = (int64_t(blockIdx.x) * kWarp + thread % kWarp) * pack;
  if (n >= x.columns) return;
  constexpr int kPieces = kReductionThreads / kWarp;
  for (int64_t piece = int64_t(blockIdx.y) * kPieces + thread / kWarp; piece * kPieceRows < x.rows;
       piece += int64_t(gridDim.y) * kPieces) {
    const int64_t begin = piece * kPieceRows, end = min(begin + kPieceRows, x.rows);
    C total[pack] = {};
#pragma unroll 8
    for (int64_t m = begin; m < end; ++m) {
      Words<T, pack> words;
      load_neighbours(words, x, m, n);
#pragma unroll
      for (int i = 0; i < pack; ++i) total[i] += to_compute<C>(words.get(i));
    }
#pragma unroll
    for (int i = 0; i < pack; ++i) sums[piece * x.columns + n + i] = total[i];
  }
}

// A block takes 32 columns; each of its warps is a lane of the sum.
template <typename C>
__global__ void __launch_bounds__(kSumLanes* kWarp)
    column_total_kernel(const C* pieces, const int64_t count, const int64_t columns, C* result) {
  __shared__ double lanes[kSumLanes][kWarp];
  const int column = static_cast<int>(threadIdx.x) % kWarp;
  const int lane = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t n = int64_t(blockIdx.x) * kWarp + column;
  double total = 0;
  if (n < columns) {
#pragma unroll 8
    for (int64_t piece = lane; piece < count; piece += kSumLanes) {
      total += pieces[piece * columns + n];
    }
  }
  lanes[lane][column] = total;
  __syncthreads();
  if (lane == 0 && n < columns) {
    result[n] = static_cast<C>(sum_of_lanes(&lanes[0][column], kWarp));
  }
}

// ---- Launchers ----------------------------------------------------------------------------------

template <typename T>
void Cuda::maxima(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima) {
  const Place place = current_place();
  const bool whole = has_whole_packs(x);
  const int64_t wide = divide_up(x.columns, kWarp * (whole ? kPack<T> : 1));
  const int64_t rows = divide_up(x.rows, kReductionThreads / kWarp);
  // Some waves of blocks, and at least a few rows for each thread.
  const int64_t wanted = std::max<int64_t>(divide_up(8 * place.multiprocessors, wide), 1);
  const int64_t high = std::clamp<int64_t>(divide_up(rows, 8), 1, std::min<int64_t>(wanted, 65535));
  const dim3 grid(static_cast<unsigned>(wide), static_cast<unsigned>(high));
  if (whole) {
    scaled_maxima_kernel<T, kPack<T>>
        <<<grid, kReductionThreads, 0, place.stream>>>(x, factor, maxima);
  } else {
    scaled_maxima_kernel<T, 1><<<grid, kReductionThreads, 0, place.stream>>>(x, factor, maxima);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
void Cuda::sums(const Matrix<T>& x, ComputeType<T>* sums) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const bool whole = has_whole_packs(x);
  const int64_t wide = divide_up(x.columns, kWarp * (whole ? kPack<T> : 1));
  const int64_t high = divide_up(count_pieces(x.rows), kReductionThreads / kWarp);
  const dim3 grid(static_cast<unsigned>(wide),
                  static_cast<unsigned>(std::min<int64_t>(high, 65535)));
  if (whole) {
    column_sums_kernel<T, kPack<T>><<<grid, kReductionThreads, 0, stream>>>(x, sums);
  } else {
    column_sums_kernel<T, 1><<<grid, kReductionThreads, 0, stream>>>(x, sums);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename C>
void Cuda::total(const C* pieces, int64_t count, int64_t columns, C* result) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const auto blocks = static_cast<unsigned>(divide_up(columns, kWarp));
  column_total_kernel<C><<<blocks, kSumLanes * kWarp, 0, stream>>>(pieces, count, columns, result);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

#define BARAQUANT_REDUCTIONS(T)                                                            \
  template void Cuda::maxima<T>(const Matrix<T>&, const ComputeType<T>*, ComputeType<T>*); \
  template void Cuda::sums<T>(const Matrix<T>&, ComputeType<T>*);
BARAQUANT_REDUCTIONS(float)
BARAQUANT_REDUCTIONS(double)
BARAQUANT_REDUCTIONS(Float16)
BARAQUANT_REDUCTIONS(BFloat16)
template void Cuda::total(const float*, int64_t, int64_t, float*);
template void Cuda::total(const double*, int64_t, int64_t, double*);

}  // namespace baraquant::scaled
