// SPDX-License-Identifier: BSD-3-Clause
// From the ops of the scaled family to the CUDA kernels: device guard, current stream, launch check;
// the transpose of bytes, and the state of the generator.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <mutex>

#include "machine/pack.cuh"
#include "scaled/cuda/kernels.h"
#include "scaled/cuda/tile.cuh"
#include "scaled/launch.h"

namespace baraquant::scaled {
namespace {

constexpr int kBytes = 16;  // the columns of a warp in a tile of bytes
constexpr int kByteColumns = kTileWarps * kBytes;

__global__ void __launch_bounds__(kTileThreads)
    transpose_bytes_kernel(const int8_t* values, const TileTarget target, const bool aligned) {
  __shared__ ByteTile<kByteColumns> tile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = int64_t(blockIdx.x) * kByteColumns, n = first + warp * kBytes;
  const int64_t left = target.columns - n;
  const int count = static_cast<int>(max(int64_t(0), min(int64_t(kBytes), left)));
  for (int64_t top = int64_t(blockIdx.y) * kTileRows; top < target.rows;
       top += int64_t(gridDim.y) * kTileRows) {
    const int64_t m = top + lane * kRowsOfLane;
    uint4 rows[kRowsOfLane] = {};
#pragma unroll
    for (int r = 0; r < kRowsOfLane; ++r) {
      if (m + r >= target.rows || count == 0) continue;
      const int8_t* from = values + (m + r) * target.columns + n;
      if (aligned) {
        rows[r] = *reinterpret_cast<const uint4*>(from);
        continue;
      }
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < kBytes; ++i) {
        const uint32_t byte = i < count ? static_cast<uint8_t>(from[i]) : 0;
        words[i / 4] |= byte << (8 * (i % 4));
      }
      rows[r] = {words[0], words[1], words[2], words[3]};
    }
#pragma unroll
    for (int g = 0; g < kBytes / 4; ++g) {
      const auto word = [&](int r) {
        return g == 0 ? rows[r].x : g == 1 ? rows[r].y : g == 2 ? rows[r].z : rows[r].w;
      };
      uint32_t column[4];
      transpose_bytes(word(0), word(1), word(2), word(3), column);
#pragma unroll
      for (int j = 0; j < 4; ++j) tile.at(warp * kBytes + 4 * g + j, lane) = column[j];
    }
    __syncthreads();
    write_tile(tile, target, first, top);
    __syncthreads();
  }
}

// NB: while a graph is captured the numbers lie in memory, where each replay puts new ones.
__global__ void draw_kernel(const at::PhiloxCudaState drawn, int64_t* state) {
  const bool captured = drawn.captured_;
  const uint64_t seed = captured ? static_cast<uint64_t>(*drawn.seed_.ptr) : drawn.seed_.val;
  const uint64_t offset = captured
                              ? static_cast<uint64_t>(*drawn.offset_.ptr) + drawn.offset_intragraph_
                              : drawn.offset_.val;
  state[0] = static_cast<int64_t>(seed);
  state[1] = static_cast<int64_t>(offset / 4);  // four words of 32 bits are one call of Philox
}

const at::Tensor& result_of(const Part&, const at::Tensor& sums) { return sums; }
const at::Tensor& result_of(const at::Tensor&, const at::Tensor& result) { return result; }
template <typename Call>
const at::Tensor& result_of(const Call& call) {
  return call.values;
}

template <auto launch, typename... Args>
void on_device(const Args&... args) {
  const c10::cuda::CUDAGuard guard(result_of(args...).device());
  launch(args...);
}

void transpose(const at::Tensor& values, const at::Tensor& result) {
  const c10::cuda::CUDAGuard guard(values.device());
  if (Cuda::only_planned_as<int32_t>("transpose_int8", "128x128")) return;
  const auto* from = static_cast<const int8_t*>(values.const_data_ptr());
  auto* to = static_cast<int8_t*>(result.mutable_data_ptr());
  const int64_t rows = values.size(0), columns = values.size(1);
  const TileTarget target{to, rows, columns, piece_of(to, rows)};
  const bool aligned = columns % kBytes == 0 && is_aligned(from, kBytes);
  const int64_t wide = (columns + kByteColumns - 1) / kByteColumns;
  const int64_t high = std::min<int64_t>((rows + kTileRows - 1) / kTileRows, 65535);
  const dim3 grid(static_cast<unsigned>(wide), static_cast<unsigned>(high));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  transpose_bytes_kernel<<<grid, kTileThreads, 0, stream>>>(from, target, aligned);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void draw(const at::Tensor& state, int64_t count) {
  const c10::cuda::CUDAGuard guard(state.device());
  if (Cuda::only_planned_as<int32_t>("draw_random", "1")) return;
  const at::Generator& generator =
      at::cuda::detail::getDefaultCUDAGenerator(c10::cuda::current_device());
  auto* own = at::check_generator<at::CUDAGeneratorImpl>(generator);
  at::PhiloxCudaState drawn;
  {
    const std::lock_guard<std::mutex> lock(own->mutex_);
    drawn = own->philox_cuda_state(4 * static_cast<uint64_t>(count));
  }
  auto* numbers = static_cast<int64_t*>(state.mutable_data_ptr());
  draw_kernel<<<1, 1, 0, c10::cuda::getCurrentCUDAStream()>>>(drawn, numbers);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

const Kernels& cuda_kernels() {
  using L = Launch<Cuda>;
  static const Kernels kernels{&on_device<&L::rows, RowsCall>,
                               &on_device<&L::sums, Part, at::Tensor>,
                               &on_device<&L::total, at::Tensor, at::Tensor>,
                               &on_device<&L::maxima, ColumnsCall>,
                               &on_device<&L::columns, ColumnsCall>,
                               &on_device<&L::given, GivenCall>,
                               &transpose,
                               &draw};
  return kernels;
}

}  // namespace baraquant::scaled
