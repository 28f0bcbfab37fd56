// SPDX-License-Identifier: BSD-3-Clause
// The last step of a product alone: sums that lie in memory become outputs (int8_mm/math.h). It moves
// as many bytes as a copy. A thread keeps the numbers of its columns in registers, and goes down the
// rows of the matrix.
#include <algorithm>

#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/scale_vectors.cuh"

namespace baraquant::int8_mm {
namespace {

constexpr int kThreads = 256;

// A block is blockDim.x packs of columns wide.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    rescale_kernel(const int32_t* sums, int64_t m, int64_t n, Rescaling<ComputeType<T>> r,
                   T* output, bool aligned) {
  using C = ComputeType<T>;
  const int64_t column =
      (int64_t(blockIdx.x) * blockDim.x + static_cast<int>(threadIdx.x)) * kRescaledPack;
  if (column >= n) return;
  const int count = n - column < kRescaledPack ? static_cast<int>(n - column) : kRescaledPack;
  ColumnScales<C> columns[kRescaledPack];
#pragma unroll
  for (int i = 0; i < kRescaledPack; ++i) {
    columns[i] = ColumnScales<C>(r, column + (i < count ? i : 0));
  }
  constexpr int kDeep = 2;  // rows that are loaded before the first is used
  const int64_t step = int64_t(gridDim.y) * blockDim.y;
  for (int64_t row = int64_t(blockIdx.y) * blockDim.y + static_cast<int>(threadIdx.y); row < m;
       row += step * kDeep) {
    Pack<int32_t, kRescaledPack> from[kDeep] = {};
    RowScales<C> scales[kDeep];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      const int64_t at = row + d * step < m ? row + d * step : row;
      load(from[d], sums, at * n + column, count, aligned);
      scales[d] = RowScales<C>(r, at);
    }
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      if (row + d * step >= m) break;
      Pack<T, kRescaledPack> to;
#pragma unroll
      for (int i = 0; i < kRescaledPack; ++i) {
        to.at[i] = output_of<T>(r, from[d].at[i], scales[d], columns[i]);
      }
      store(to, output, (row + d * step) * n + column, count, aligned);
    }
  }
}

}  // namespace

template <typename T>
void launch_rescale(const int32_t* sums, const ProductParams<T>& args, int multiprocessors,
                    cudaStream_t stream) {
  const int64_t m = args.operands.m, n = args.operands.n;
  const int64_t packs = divide_up(n, kRescaledPack);
  unsigned wide = kThreads;
  while (wide / 2 >= packs && wide > 1) wide /= 2;
  const dim3 block(wide, kThreads / wide);
  const int64_t across = divide_up(packs, wide), down = divide_up(m, block.y);
  // No more blocks than fit at once: each loads the numbers of its columns.
  const int64_t wanted = std::max<int64_t>(divide_up(int64_t(8) * multiprocessors, across), 1);
  const dim3 grid(static_cast<unsigned>(across),
                  static_cast<unsigned>(std::min({down, wanted, int64_t(65535)})));
  const bool aligned = n % kRescaledPack == 0 &&
                       is_aligned(sums, sizeof(int32_t) * kRescaledPack) &&
                       is_aligned(args.output, sizeof(T) * kRescaledPack);
  rescale_kernel<T><<<grid, block, 0, stream>>>(sums, m, n, args.rescaling, args.output, aligned);
}

template void launch_rescale(const int32_t*, const ProductParams<float>&, int, cudaStream_t);
template void launch_rescale(const int32_t*, const ProductParams<double>&, int, cudaStream_t);
template void launch_rescale(const int32_t*, const ProductParams<Float16>&, int, cudaStream_t);
template void launch_rescale(const int32_t*, const ProductParams<BFloat16>&, int, cudaStream_t);

}  // namespace baraquant::int8_mm
