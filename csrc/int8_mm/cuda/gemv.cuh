// SPDX-License-Identifier: BSD-3-Clause
// The product of one to four input rows, which reads the weight once. A warp takes one or two rows
// of the weight, 512 bytes of each at a time. If the weight has few rows, the warps of a block
// divide the depth of the same rows among them.
#pragma once

#include <utility>

#include "int8_mm/cuda/generic/pipeline.cuh"
#include "int8_mm/cuda/scale_vectors.cuh"
#include "machine/bulk_copy.cuh"
#include "machine/early_launch.cuh"
#include "machine/several.cuh"

namespace baraquant::int8_mm {

// --- kernels -------------------------------------------------------------------------------------

// Adds up the warp's share of the depth for `columns` rows of the weight, from row n on.
template <int rows, int columns, bool is_unsigned, bool aligned>
__device__ __forceinline__ void add_depth(int (&sums)[rows][columns], const Matrix<aligned>& input,
                                          const Matrix<aligned>& weight, int64_t n, int share,
                                          int shares) {
  constexpr int kDeep = aligned ? 8 / columns : 2;  // loads in flight before the first is used
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t step = int64_t(shares) * 32 * kChunk;
  const int64_t first = int64_t(share) * 32 * kChunk;
  for (int64_t from = first; from < input.k; from += step * kDeep) {  // the same for a whole warp
    const int64_t at = from + lane * kChunk;
    uint4 words[kDeep][columns];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int64_t row = n + c < weight.rows ? n + c : n;
        words[d][c] = weight.streamed_chunk(row, at + d * step);
      }
    }

#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const uint4 a = input.chunk(r, at + d * step);
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          sums[r][c] = add_products<is_unsigned>(a, words[d][c], sums[r][c]);
        }
      }
    }
  }
}

// Adds up the sums of all threads that share a row. Each of them gets the result.
template <int count>
__device__ __forceinline__ void add_warps(int (&sums)[count], int share, int shares) {
  __shared__ int others[kVectorWarps][count];
#pragma unroll
  for (int i = 0; i < count; ++i) sums[i] = __reduce_add_sync(0xffffffffu, sums[i]);
  if (shares == 1) return;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < count; ++i) others[share][i] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    sums[i] = 0;
#pragma unroll
    for (int s = 0; s < kVectorWarps; ++s) sums[i] += others[s][i];
  }
}

// How many blocks must fit on a multiprocessor: as many as leave registers for the loads in flight.
template <int rows, bool aligned>
constexpr int kVectorBlocks = !aligned    ? 4
                              : rows <= 2 ? 8
                                          : 7;

// About as many as run at once. The kernel before it has ended when the others begin.
constexpr unsigned kFirstBlocks = 1024;

template <typename T, int rows, bool is_unsigned, bool aligned, int most>
__global__ void __launch_bounds__(32 * kVectorWarps, kVectorBlocks<rows, aligned>)
    vector_kernel(const __grid_constant__ Several<ProductParams<T>, most> several,
                  const int shares) {
  constexpr int columns = rows == 1 ? 1 : 2;  // the input's rows are read from the cache each time
  unsigned block = blockIdx.x;
  const ProductParams<T>& args = several.of_block(block);
  const Operands& f = args.operands;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int share = warp % shares;
  const int64_t n = (int64_t(block) * (kVectorWarps / shares) + warp / shares) * columns;
  const Matrix<aligned> input{static_cast<const uint8_t*>(f.input), f.m, f.k};
  const Matrix<aligned> weight{reinterpret_cast<const uint8_t*>(f.weight), f.n, f.k};
  const bool leads = aligned && blockIdx.x < kFirstBlocks && share == 0 && lane < columns;
  if (leads && n + lane < f.n) prefetch_row<512>(weight.base + (n + lane) * f.k, f.k);
  wait_for_last_kernel();
  let_next_kernel_begin();
  if (n >= f.n) return;  // the same for all warps that share a row

  int sums[rows][columns] = {};
  add_depth<rows, columns, is_unsigned, aligned>(sums, input, weight, n, share, shares);
  auto& flat = reinterpret_cast<int (&)[rows * columns]>(sums);
  add_warps(flat, share, shares);

  // Each of the first lanes writes one output.
  if (share > 0 || lane >= rows * columns) return;
  const int row = lane / columns, column = lane % columns;
  if (n + column >= f.n) return;
  int sum = flat[0];
#pragma unroll
  for (int i = 1; i < rows * columns; ++i) sum = lane == i ? flat[i] : sum;
  using C = ComputeType<T>;
  args.output[row * f.n + n + column] =
      output_of<T>(args.rescaling, sum, RowScales<C>(args.rescaling, row),
                   ColumnScales<C>(args.rescaling, n + column));
}

// --- launchers -----------------------------------------------------------------------------------

template <typename T, int rows>
void launch_vector_rows(SpanOfProducts<T> products, int multiprocessors, cudaStream_t stream) {
  const bool early = is_compiled_for_hopper<&vector_kernel<T, rows, false, true, 1>>();
  constexpr int columns = rows == 1 ? 1 : 2;
  const Operands& f = products[0].operands;
  const bool aligned = has_aligned_rows(f.input, f.k) && has_aligned_rows(f.weight, f.k);
  const auto warps_of = [](const ProductParams<T>& p) { return divide_up(p.operands.n, columns); };
  int64_t warps = 0;
  for (const auto& product : products) warps += warps_of(product);
  // Eight warps on a multiprocessor suffice to use its share of the memory bandwidth.
  const int shares = warps < int64_t(8) * multiprocessors ? kVectorWarps : 1;
  const auto launch = [&](auto most, auto is_unsigned, auto is_aligned) {
    const auto several = Several<ProductParams<T>, most()>::of(products, [&](const auto& product) {
      return divide_up(warps_of(product) * shares, kVectorWarps);
    });
    launch_waiting(&vector_kernel<T, rows, is_unsigned(), is_aligned(), most()>, early,
                   {several.blocks(), 32 * kVectorWarps}, stream, several, shares);
  };
  if constexpr (sizeof(T) == 2) {
    using Most = std::integral_constant<int, kMostTogether>;
    if (products.size() > 1) return launch(Most(), std::false_type(), std::true_type());
  }
  const auto launch_one = [&](auto... flags) {
    launch(std::integral_constant<int, 1>(), flags...);
  };
  with_flags(launch_one, f.is_unsigned, aligned);
}

template <typename T>
void launch_vector(SpanOfProducts<T> products, int multiprocessors, cudaStream_t stream) {
  const int64_t m = products[0].operands.m;
  [&]<int... less>(std::integer_sequence<int, less...>) {
    ((m == less + 1 ? launch_vector_rows<T, less + 1>(products, multiprocessors, stream) : void()),
     ...);
  }(std::make_integer_sequence<int, kMaxVectorRows>());
}

}  // namespace baraquant::int8_mm
