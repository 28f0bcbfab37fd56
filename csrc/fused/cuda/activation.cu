// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the activations: rows in registers, and rows of any length.
#include "fused/cuda/kernels.cuh"
#include "fused/elementary.h"

namespace baraquant::fused {
namespace {

template <typename T, typename F>
__device__ __forceinline__ void replace(Numbers<T>& x, const F& f) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = f(x.at[i]);
}

// NB: a missing element stays +0, which every activation keeps.
template <typename T>
__device__ __forceinline__ void make_pack(RowWords<T>& words, const ActivationParams<T>& args,
                                          const Place& place, int p) {
  load_pack(words, args.rows.input.row(place.row), place, p);
  if (args.activation == Activation::kSiluMul) {
    RowWords<T> up;
    load_pack(up, args.up.row(place.row), place, p);
    Numbers<T> x(words);
    const Numbers<T> factors(up);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] = silu_for<T>(x.at[i]) * factors.at[i];
    x.write(words);
    return;
  }
  Numbers<T> x(words);
  if (args.activation == Activation::kGelu) {
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
  // As many threads as a block may have: an activation is some twenty to eighty instructions, which
  // a thread should not hold for many elements. Rows of 32768 elements fit.
  static constexpr int kMaxLanesLog2 = sizeof(T) == 2 ? 14 : 13;
  static constexpr int kMaxPacks = sizeof(T) == 2 ? 2 : 4;

  template <int packs>
  __device__ static __forceinline__ void make(RowWords<T> (&row)[packs], const Params& args,
                                              const Mapping&, const Place& place) {
#pragma unroll
    for (int p = 0; p < packs; ++p) make_pack(row[p], args, place, p);
  }
};

// A thread has one pack of a row that no registers hold: the row is a team of as many threads.
template <typename T>
__global__ void __launch_bounds__(kSharedThreads)
    long_activation_kernel(const ActivationParams<T> args, bool whole, Divisor packs_of_row) {
  const int64_t pack = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t row = packs_of_row.divide(pack);
  Place place(Mapping{}, args.rows.count, args.rows.length);
  place.row = row;
  place.length = row < args.rows.count ? args.rows.length : 0;
  place.lane = static_cast<int>(pack - row * packs_of_row.value);
  place.whole = whole;
  RowWords<T> words;
  make_pack(words, args, place, 0);
  store_pack(words, args.rows.output + row * args.rows.length, place, 0);
}

struct Cuda {
  template <typename T>
  static bool activation(const ActivationParams<T>& args) {
    const char* name = activation_name(args.activation);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const bool up_is_whole = !args.up.data || is_aligned_rows<T>(args.up.data, args.up.stride);
    if (launch_rows<ActivationStage<T>>(args, up_is_whole, name, "", stream)) {
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return true;
    }
    const Rows<T>& rows = args.rows;
    if (rows.values) return false;
    if (only_planned_rows(name, rows, 1, 1, "")) return true;
    const Divisor packs(divide_up(rows.length, kPack<T>));
    const int64_t blocks = divide_up(rows.count * packs.value, kSharedThreads);
    long_activation_kernel<T><<<static_cast<unsigned>(blocks), kSharedThreads, 0, stream>>>(
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
