// SPDX-License-Identifier: BSD-3-Clause
// What is done before and after a product: it sums the rows of the weight, copies rows to where TMA
// can read them, makes inputs signed and outputs dense.
#include <algorithm>

#include "int8_mm/cuda/generic/pipeline.cuh"

namespace baraquant::int8_mm {

namespace {

template <bool aligned>
__global__ void __launch_bounds__(32 * kVectorWarps, 8)
    weight_sums_kernel(const int8_t* weight, int64_t n, int64_t k, int32_t* sums) {
  const int64_t row = int64_t(blockIdx.x) * kVectorWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= n) return;
  constexpr uint32_t kOnes = 0x01010101;
  constexpr int kDeep = aligned ? 8 : 2;  // loads in flight before the first is used
  constexpr int kStep = 32 * kChunk;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Matrix<aligned> matrix{reinterpret_cast<const uint8_t*>(weight), n, k};
  int sum = 0;
  for (int64_t at = lane * kChunk; at < k; at += kStep * kDeep) {
    uint4 words[kDeep];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) words[d] = matrix.streamed_chunk(row, at + d * kStep);
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      sum = add_products<true>(uint4{kOnes, kOnes, kOnes, kOnes}, words[d], sum);
    }
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (lane == 0) sums[row] = sum;
}

constexpr int kThreads = 256;

// A warp copies a row.
__global__ void __launch_bounds__(kThreads)
    pad_rows_kernel(const Matrix<false> matrix, int64_t chunks, uint4* result) {
  const int64_t row = int64_t(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= matrix.rows) return;
  constexpr int kDeep = 2;  // chunks that a thread reads before it writes the first
  for (int64_t at = threadIdx.x % 32; at < chunks; at += 32 * kDeep) {
    uint4 words[kDeep];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) words[d] = matrix.chunk(row, (at + 32 * d) * kChunk);
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      if (at + 32 * d < chunks) result[row * chunks + at + 32 * d] = words[d];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    make_signed_kernel(const uint4* input, uint4* result, int64_t words, OfRows<int32_t> rows,
                       int32_t* zero_point, int64_t points) {
  const int64_t threads = int64_t(gridDim.x) * kThreads;
  const int64_t first = int64_t(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  constexpr uint32_t kTops = 0x80808080;
  for (int64_t i = first; i < words; i += threads) {
    const uint4 w = input[i];
    result[i] = {w.x ^ kTops, w.y ^ kTops, w.z ^ kTops, w.w ^ kTops};
  }
  for (int64_t i = first; i < points; i += threads) {
    zero_point[i] = min(max(rows.at(i), 0), 255) - 128;
  }
}

// A thread writes 16 bytes, which may lie in several rows.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    make_dense_kernel(const T* rows, int64_t stride, int64_t m, int64_t n, T* result,
                      bool aligned) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t begin = (int64_t(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kPack;
  if (begin >= m * n) return;
  const int64_t left = m * n - begin;
  const int count = left < kPack ? static_cast<int>(left) : kPack;
  const T* row = rows + begin / n * stride;
  int64_t column = begin % n;
  Pack<T, kPack> pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) pack.at[i] = row[column];
    if (++column == n) {
      column = 0;
      row += stride;
    }
  }
  store(pack, result, begin, count, aligned);
}

template <typename T>
void launch_make_dense(const void* rows, int64_t stride, int64_t m, int64_t n, void* result,
                       cudaStream_t stream) {
  const int64_t blocks = divide_up(m * n, kThreads * (16 / int64_t(sizeof(T))));
  make_dense_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(rows), stride, m, n, static_cast<T*>(result), is_aligned(result, 16));
}

}  // namespace

void launch_make_dense(const void* rows, int64_t stride, int64_t m, int64_t n, int size,
                       void* result, cudaStream_t stream) {
  size == 2 ? launch_make_dense<uint16_t>(rows, stride, m, n, result, stream)
            : launch_make_dense<uint32_t>(rows, stride, m, n, result, stream);
}

void launch_weight_sums(const int8_t* weight, int64_t n, int64_t k, int32_t* sums,
                        cudaStream_t stream) {
  auto kernel =
      has_aligned_rows(weight, k) ? &weight_sums_kernel<true> : &weight_sums_kernel<false>;
  const auto blocks = static_cast<unsigned>(divide_up(n, kVectorWarps));
  kernel<<<blocks, 32 * kVectorWarps, 0, stream>>>(weight, n, k, sums);
}

void launch_pad_rows(const void* matrix, int64_t rows, int64_t k, void* result,
                     cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(divide_up(rows, kThreads / 32));
  pad_rows_kernel<<<blocks, kThreads, 0, stream>>>({static_cast<const uint8_t*>(matrix), rows, k},
                                                   divide_up(k, kChunk),
                                                   static_cast<uint4*>(result));
}

void launch_make_signed(const Operands& operands, const OfRows<int32_t>& rows, void* input,
                        int32_t* zero_point, cudaStream_t stream) {
  const int64_t words = operands.m * operands.k / kChunk;
  const int64_t points = rows.stride == 0 ? 1 : operands.m;
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = std::min(divide_up(std::max(words, points), kThreads), kMaxBlocks);
  make_signed_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const uint4*>(operands.input), static_cast<uint4*>(input), words, rows,
      zero_point, points);
}

}  // namespace baraquant::int8_mm
