// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of four-bit weights, with their device guard, stream and launch check.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "frame/cuda_plan.cuh"
#include "int4/cuda/decode.cuh"
#include "int4/launch.h"
#include "machine/pack.cuh"

namespace baraquant::int4 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kChunkColumns = 32;  // in 16 bytes

// ---- The ranges of groups -----------------------------------------------------------------------

template <typename Key>
__device__ Key shuffled(Key key, int mask) {
  if constexpr (sizeof(Key) == 8) {
    return static_cast<Key>(__shfl_xor_sync(0xffffffffu, static_cast<long long>(key), mask));
  } else {
    return static_cast<Key>(__shfl_xor_sync(0xffffffffu, static_cast<int>(key), mask));
  }
}

template <typename T>
__device__ range::Magnitude<T> shuffled(const range::Magnitude<T>& range, int mask) {
  return {shuffled(range.max, mask)};
}
template <typename T>
__device__ range::MinMax<T> shuffled(const range::MinMax<T>& range, int mask) {
  return {shuffled(range.lowest, mask), shuffled(range.highest, mask)};
}

// The range of some elements, found by `threads` threads of which this is number `thread`; all the
// lanes of a warp get that of the warp.
template <typename Range, typename T>
__device__ Range range_of_warp(const T* values, int64_t count, int thread, int threads) {
  Range range;
  for (int64_t i = thread; i < count; i += threads) range.add(values[i]);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) range.merge(shuffled(range, mask));
  return range;
}

// A block takes a row: first its maximum, then the groups, one for each warp at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads) choose_int4_kernel(const ChooseParams<T> args) {
  using C = ComputeType<T>;
  using Magnitude = range::Magnitude<T>;
  __shared__ range::Key<T> maxima[kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t n = blockIdx.x, groups = args.groups();
  const T* const row = args.weight + n * args.columns;
  const auto own = range_of_warp<Magnitude>(row, args.columns, thread, kThreads);
  if (lane == 0) maxima[warp] = own.max;
  __syncthreads();
  Magnitude all;
#pragma unroll
  for (const range::Key<T> max : maxima) all.merge({max});
  const C scale = row_scale(range::value_of_magnitude<T>(all.max), args.width);
  if (thread == 0) args.scale[n] = scale;
  for (int64_t g = warp; g < groups; g += kWarps) {
    const int64_t first = g * args.group_size;
    const int64_t count = min(args.group_size, args.columns - first);
    Group group;
    if (args.symmetric) {
      const auto range = range_of_warp<Magnitude>(row + first, count, lane, 32);
      group = choose_symmetric(range::value_of_magnitude<T>(range.max), scale, args.width);
    } else {
      auto range = range_of_warp<range::MinMax<T>>(row + first, count, lane, 32);
      range.add(T{});
      group = choose_asymmetric(range::value_of_ordered<T>(range.lowest),
                                range::value_of_ordered<T>(range.highest), scale, args.width);
    }
    if (lane == 0) {
      args.factor[n * groups + g] = group.factor;
      args.zero_point[n * groups + g] = group.zero_point;
    }
  }
}

// ---- Numbers of four bits: a thread takes a byte ------------------------------------------------

// Calls f(row, number of the byte in the row) for each byte of rows of this many bytes.
template <typename F>
__device__ void for_each_byte(int64_t rows, int64_t bytes, const F& f) {
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < rows * bytes; i += step) {
    f(i / bytes, i % bytes);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_int4_kernel(const QuantizeParams<T> args) {
  using C = ComputeType<T>;
  const Packed& packed = args.packed;
  const int64_t bytes = packed_size(packed.columns);
  for_each_byte(args.rows, bytes, [&](int64_t n, int64_t i) {
    const Grid<C> grid(args.scale[n], packed.group(n, 2 * i / packed.group_size), args.width);
    const T* const from = args.weight + n * packed.columns + 2 * i;
    const uint32_t low = grid.quantize(to_compute<C>(from[0]));
    const bool pair = 2 * i + 1 < packed.columns;
    const uint32_t high = pair ? grid.quantize(to_compute<C>(from[1])) : 0;
    args.target[n * bytes + i] = static_cast<uint8_t>(low | high << 4);
  });
}

__global__ void __launch_bounds__(kThreads) pack_int4_kernel(const PackParams args) {
  const int64_t bytes = packed_size(args.columns);
  for_each_byte(args.rows, bytes, [&](int64_t n, int64_t i) {
    const int8_t* const from = args.integers + n * args.columns + 2 * i;
    const bool pair = 2 * i + 1 < args.columns;
    args.target[n * bytes + i] = packed_pair(from[0], pair ? from[1] : -kMiddle);
  });
}

__global__ void __launch_bounds__(kThreads) expand_int4_kernel(const ExpandParams args) {
  const Packed& packed = args.packed;
  const int64_t columns = packed.columns;
  for_each_byte(args.rows, packed_size(columns), [&](int64_t n, int64_t i) {
    const Group group = packed.group(n, 2 * i / packed.group_size);
    const uint32_t byte = packed.row(n)[i];
    int8_t* const to = args.target + n * columns + 2 * i;
    to[0] = expand(byte & 15, group);
    if (2 * i + 1 < columns) to[1] = expand(byte >> 4, group);
  });
}

// The same for whole groups of 32 columns and aligned rows: a thread takes 16 bytes at a time.
__global__ void __launch_bounds__(kThreads) expand_int4_chunks_kernel(const ExpandParams args) {
  const Packed& packed = args.packed;
  const int64_t chunks = packed.columns / kChunkColumns;
  const auto* const from = reinterpret_cast<const uint4*>(packed.values);
  auto* const to = reinterpret_cast<uint4*>(args.target);
  for_each_byte(args.rows, chunks, [&](int64_t n, int64_t i) {
    const Group group = packed.group(n, kChunkColumns * i / packed.group_size);
    const Decoder decoder(group.factor, group.zero_point);
    const uint4 words = from[n * chunks + i];
    const uint2 a = decoder.decode_word<false>(words.x), b = decoder.decode_word<false>(words.y);
    const uint2 c = decoder.decode_word<false>(words.z), d = decoder.decode_word<false>(words.w);
    to[2 * (n * chunks + i)] = {a.x, a.y, b.x, b.y};
    to[2 * (n * chunks + i) + 1] = {c.x, c.y, d.x, d.y};
  });
}

// ---- Launches -----------------------------------------------------------------------------------

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(std::min<int64_t>(divide_up(threads, kThreads), 1 << 20));
}

template <typename C>
bool only_planned_as(const char* name, const char* tile = "256") {
  return only_planned([&] { return cuda_plan<C>(name, tile); });
}

struct Cuda {
  template <typename T>
  static void choose(const ChooseParams<T>& args) {
    if (only_planned_as<ComputeType<T>>("choose_int4_qparams", "row")) return;
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    choose_int4_kernel<T><<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <typename T>
  static void quantize(const QuantizeParams<T>& args) {
    if (only_planned_as<ComputeType<T>>("quantize_int4")) return;
    const unsigned blocks = blocks_for(args.rows * packed_size(args.packed.columns));
    quantize_int4_kernel<T><<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(args);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

void choose(const ChooseCall& call) {
  const c10::cuda::CUDAGuard guard(call.weight.device());
  Launch<Cuda>::choose(call);
}

void quantize(const at::Tensor& weight, const at::Tensor& scale, Width width,
              const PackedWeight& packed) {
  const c10::cuda::CUDAGuard guard(weight.device());
  Launch<Cuda>::quantize(weight, scale, width, packed);
}

void expand_weight(const ExpandParams& args, const at::Tensor& target) {
  const c10::cuda::CUDAGuard guard(target.device());
  const Packed& packed = args.packed;
  const bool by_chunks = packed.columns % kChunkColumns == 0 &&
                         packed.group_size % kChunkColumns == 0 && is_aligned(packed.values, 16) &&
                         is_aligned(args.target, 16);
  if (only_planned_as<int32_t>(by_chunks ? "expand_int4_chunks" : "expand_int4")) return;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const int64_t bytes = args.rows * packed_size(packed.columns);
  if (by_chunks) {
    expand_int4_chunks_kernel<<<blocks_for(bytes / 16), kThreads, 0, stream>>>(args);
  } else {
    expand_int4_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(args);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void pack(const PackParams& args, const at::Tensor& target) {
  const c10::cuda::CUDAGuard guard(target.device());
  if (only_planned_as<int32_t>("pack_int4")) return;
  const unsigned blocks = blocks_for(args.rows * packed_size(args.columns));
  pack_int4_kernel<<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(args);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&choose, &quantize, &expand_weight, &pack};
  return kernels;
}

}  // namespace baraquant::int4
