// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the activations: of rows that are quantized, and of floating-point ones.
#include "fused/cuda/kernels.cuh"
#include "fused/elementary.h"

namespace baraquant::fused {
namespace {

template <typename T, typename F>
__device__ __forceinline__ void replace(Numbers<T>& x, const F& f) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = f(x.at[i]);
}

// Replaces a loaded pack. NB: a missing element stays +0, which every activation keeps.
template <typename T>
__device__ __forceinline__ void make_pack(RowWords<T>& words, const ActivationParams<T>& args,
                                          const Place& place, int p) {
  Numbers<T> x(words);
  if (args.activation == Activation::kSiluMul) {
    RowWords<T> up;
    load_pack(up, args.up.row(place.row), place, p);
    const Numbers<T> factors(up);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] = silu_for<T>(x.at[i]) * factors.at[i];
  } else if (args.activation == Activation::kGelu) {
    replace(x, [](float v) { return gelu_for<T>(v); });
  } else {
    replace(x, [](float v) { return gelu_tanh_for<T>(v); });
  }
  x.write(words);
}

template <typename Storage>
struct ActivationStage {
  using T = Storage;
  using Params = ActivationParams<T>;
  static constexpr bool kOnlyQuantized = true;
  static constexpr int kFewRowsThreads = 1024, kFewRowsPacks = 2;
  static constexpr int threads(int packs) {
    return packs <= kFewRowsPacks ? kFewRowsThreads : kTeam<T>;
  }
  static constexpr int registers(int packs) { return 40 + 8 * packs; }

  template <int packs>
  __device__ static __forceinline__ void make(RowWords<T> (&row)[packs], const Params& args,
                                              const Mapping&, const Place& place) {
    const T* const input = args.rows.input.row(place.row);
#pragma unroll
    for (int p = 0; p < packs; ++p) load_pack(row[p], input, place, p);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      if (place.count(p, kPack<T>) > 0) make_pack(row[p], args, place, p);
    }
  }

  // An activation is some twenty to eighty instructions. If there are few rows, or long ones, each is
  // shared by as many threads as a block may have.
  static int max_lanes_log2(const Rows<T>& rows) {
    constexpr int64_t kLanes = kFewRowsThreads * kPack<T>;
    int multiprocessors = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                           c10::cuda::current_device());
    const bool few = rows.count <= multiprocessors, is_long = rows.length > 4 * kMaxLanes;
    const bool fits = rows.length <= kFewRowsPacks * kLanes;
    return (few || is_long) && fits ? log2_up(kLanes, 14) : kMaxLanesLog2;
  }
};

// A thread has one pack, and a row is a team of as many threads as it has packs.
template <typename T>
__global__ void __launch_bounds__(kSharedThreads)
    activation_kernel(const ActivationParams<T> args, bool whole, Divisor packs_of_row) {
  let_next_kernel_begin();
  const int64_t pack = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = packs_of_row.divide(pack);
  Place place(Mapping{}, args.rows.count, args.rows.length);
  place.row = row;
  place.length = row < args.rows.count ? args.rows.length : 0;
  place.lane = static_cast<int>(pack - row * packs_of_row.value);
  place.whole = whole;
  RowWords<T> words;
  load_pack(words, args.rows.input.row(row), place, 0);
  make_pack(words, args, place, 0);
  store_pack(words, args.rows.output + row * args.rows.length, place, 0);
}

struct Cuda {
  template <typename T>
  static bool activation(const ActivationParams<T>& args) {
    const char* name = activation_name(args.activation);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const bool up_is_whole = !args.up.data || is_aligned_rows<T>(args.up.data, args.up.stride);
    const Rows<T>& rows = args.rows;
    if (rows.values) {
      using Stage = ActivationStage<T>;
      if (!launch_rows<Stage>(args, up_is_whole, name, "", stream, Stage::max_lanes_log2(rows))) {
        return false;
      }
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return true;
    }
    if (only_planned_rows(name, rows, 1, 1, "")) return true;
    const Divisor packs(divide_up(rows.length, kPack<T>));
    const int64_t blocks = divide_up(rows.count * packs.value, kSharedThreads);
    activation_kernel<T><<<static_cast<unsigned>(blocks), kSharedThreads, 0, stream>>>(
        args, up_is_whole && are_whole(rows), packs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return true;
  }
};

}  // namespace

bool activation_cuda(const ActivationCall& call) {
  const c10::cuda::CUDAGuard guard(call.input.device());
  return Launch<Cuda>::activation(call);
}

}  // namespace baraquant::fused
