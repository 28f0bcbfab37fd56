// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the Hadamard rotation. The bits of an element's number are, from the lowest
// on, its place in a pack, the thread's number in its team, and the number of the pack. The steps
// h = 1, 2, 4, ... walk up these bits: first within a thread, then between threads of a warp, then
// between warps through shared memory, and at last between the packs of a thread.
#include "fused/cuda/kernels.cuh"

namespace baraquant::fused {
namespace {

// The numbers a thread holds of a row.
template <typename T, int packs>
struct Share {
  Numbers<T> at[packs];
};

template <typename C>
__device__ __forceinline__ void rotate_pair(C& a, C& b) {
  const C sum = a + b;
  b = a - b;
  a = sum;
}

template <typename T, int packs>
__device__ __forceinline__ void rotate_within_packs(Share<T, packs>& x, int64_t block) {
#pragma unroll
  for (int h = 1; h < kPack<T>; h *= 2) {
    if (h >= block) return;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if ((i & h) == 0) rotate_pair(x.at[p].at[i], x.at[p].at[i + h]);
      }
    }
  }
}

// `other` belongs to the element whose number differs in one bit. `sign` is -1 for the second of
// the two, for which the bit is set, else 1. NB: the product is exact, so that a fused multiply-add
// rounds as the sum or the difference does.
__device__ __forceinline__ float rotated(float mine, float other, float sign) {
  return __fmaf_rn(mine, sign, other);
}
__device__ __forceinline__ double rotated(double mine, double other, double sign) {
  return __fma_rn(mine, sign, other);
}
template <typename C>
__device__ __forceinline__ C sign_of(const Place& place, int bit) {
  return (place.lane >> bit & 1) != 0 ? C(-1) : C(1);
}

template <typename T, int packs>
__device__ __forceinline__ void rotate_within_warp(Share<T, packs>& x, int64_t block,
                                                   const Place& place) {
  const int bits = place.team_log2 < 5 ? place.team_log2 : 5;
  for (int bit = 0; bit < bits; ++bit) {
    if ((int64_t(kPack<T>) << bit) >= block) return;
    const auto sign = sign_of<ComputeType<T>>(place, bit);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const auto other = __shfl_xor_sync(kAllLanes, x.at[p].at[i], 1 << bit);
        x.at[p].at[i] = rotated(x.at[p].at[i], other, sign);
      }
    }
  }
}

// NB: all threads of the block call this; the team is the block. Thread t puts element i of a pack
// at i * threads + t, so that the threads of a warp meet no bank twice.
template <typename T, int packs>
__device__ __forceinline__ void rotate_within_block(Share<T, packs>& x, int64_t block,
                                                    const Place& place) {
  using C = ComputeType<T>;
  __shared__ C exchange[kMaxLanes];
  for (int bit = 5; bit < place.team_log2; ++bit) {
    if ((int64_t(kPack<T>) << bit) >= block) return;
    const auto sign = sign_of<ComputeType<T>>(place, bit);
    const int partner = place.lane ^ (1 << bit);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      __syncthreads();  // what was read before has been read
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) exchange[i * place.team + place.lane] = x.at[p].at[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        x.at[p].at[i] = rotated(x.at[p].at[i], exchange[i * place.team + partner], sign);
      }
    }
  }
}

template <typename T, int packs>
__device__ __forceinline__ void rotate_between_packs(Share<T, packs>& x, int64_t block) {
#pragma unroll
  for (int step = 1; step < packs; step *= 2) {
    if (int64_t(step) * kMaxLanes >= block) return;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      if ((p & step) != 0) continue;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) rotate_pair(x.at[p].at[i], x.at[p + step].at[i]);
    }
  }
}

template <typename Storage>
struct HadamardStage {
  using T = Storage;
  using Params = HadamardParams<T>;
  static constexpr int threads(int) { return kTeam<T>; }
  static constexpr int registers(int) { return 255; }

  template <int packs>
  __device__ static __forceinline__ void make(RowWords<T> (&row)[packs], const Params& args,
                                              const Mapping& mapping, const Place& place) {
    Share<T, packs> x;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      RowWords<T> words;
      load_pack(words, args.rows.input.row(place.row), place, p);
      x.at[p] = Numbers<T>(words);
    }
    rotate_within_packs<T, packs>(x, args.block);
    rotate_within_warp<T, packs>(x, args.block, place);
    if (mapping.is_block()) rotate_within_block<T, packs>(x, args.block, place);
    rotate_between_packs<T, packs>(x, args.block);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) x.at[p].at[i] = x.at[p].at[i] * args.factor;
      x.at[p].write(row[p]);
    }
  }
};

struct Cuda {
  template <typename T>
  static bool hadamard(const HadamardParams<T>& args) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (!launch_rows<HadamardStage<T>>(args, true, "hadamard", "", stream)) return false;
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return true;
  }
};

}  // namespace

bool hadamard_cuda(const HadamardCall& call) {
  const c10::cuda::CUDAGuard guard(call.input.device());
  return Launch<Cuda>::hadamard(call);
}

}  // namespace baraquant::fused
