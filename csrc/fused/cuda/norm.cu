// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the norms: rows in registers, and rows of any length.
#include "fused/cuda/kernels.cuh"

namespace baraquant::fused {
namespace {

// Adds over a team's threads, neighbours first. Every thread gets the sum. `of_warps` is shared
// memory that nothing else uses meanwhile.
__device__ __forceinline__ double add_team(double sum, const Mapping& mapping, double* of_warps) {
  const int in_warp = mapping.is_block() ? 5 : mapping.team_log2;
  for (int bit = 0; bit < in_warp; ++bit) sum += __shfl_xor_sync(kAllLanes, sum, 1 << bit);
  if (!mapping.is_block()) return sum;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  const int warps_log2 = mapping.team_log2 - 5;
  sum = of_warps[lane & ((1 << warps_log2) - 1)];
  for (int bit = 0; bit < warps_log2; ++bit) sum += __shfl_xor_sync(kAllLanes, sum, 1 << bit);
  return sum;
}

// The sums of a thread's lanes. A missing element is +0, which changes no sum, since none is -0.
template <typename T>
struct LaneSums {
  double at[kPack<T>] = {};

  __device__ __forceinline__ void add(const Numbers<T>& x) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) at[i] += widened(x.at[i]);
  }
  __device__ __forceinline__ void add_squares(const Numbers<T>& x) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) at[i] = plus_square(at[i], x.at[i]);
  }
  // NB: recursive, since a loop over `left` was not unrolled, which put the sums into memory.
  template <int left = kPack<T> / 2>
  __device__ __forceinline__ double added_in_pairs() {
    if constexpr (left >= 1) {
#pragma unroll
      for (int i = 0; i < left; ++i) at[i] = at[2 * i] + at[2 * i + 1];
      return added_in_pairs<left / 2>();
    } else {
      return at[0];
    }
  }
};

template <typename T>
__device__ __forceinline__ void subtract(Numbers<T>& x, ComputeType<T> mean) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = x.at[i] - mean;
}

// for_each_pack(f) calls f(words, p) for the packs of the thread, in turn.
template <typename T, typename ForEachPack>
__device__ __forceinline__ Moments<ComputeType<T>> moments_of(const ForEachPack& for_each_pack,
                                                              const NormParams<T>& args,
                                                              const Mapping& mapping,
                                                              const Place& place) {
  using C = ComputeType<T>;
  __shared__ double of_warps[2][kWarp];
  C mean(0);
  if (args.centered) {
    LaneSums<T> sums;
    for_each_pack([&](const RowWords<T>& words, int) { sums.add(Numbers<T>(words)); });
    mean = mean_of<C>(add_team(sums.added_in_pairs(), mapping, of_warps[0]), args.rows.length);
  }
  LaneSums<T> squares;
  for_each_pack([&](const RowWords<T>& words, int p) {
    Numbers<T> x(words);
    if (args.centered) {
      subtract(x, mean);
      x.clear_from(place.count(p, kPack<T>));
    }
    squares.add_squares(x);
  });
  return moments(mean, add_team(squares.added_in_pairs(), mapping, of_warps[1]), args.rows.length,
                 args.eps);
}

// Reads pack p, adds the residual to it and writes the sum.
template <typename T>
__device__ __forceinline__ void load_sum(RowWords<T>& words, const NormParams<T>& args,
                                         const Place& place, int p) {
  load_pack(words, args.rows.input.row(place.row), place, p);
  if (!args.residual.data) return;
  RowWords<T> residual;
  load_pack(residual, args.residual.row(place.row), place, p);
  Numbers<T> sum(words);
  const Numbers<T> other(residual);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) sum.at[i] = sum.at[i] + other.at[i];
  sum.write(words);
  store_pack(words, args.residual_out + place.row * args.rows.length, place, p);
}

// Pack p of a weight or bias.
template <typename T>
struct Factors {
  using C = ComputeType<T>;
  C at[kPack<T>];

  __device__ __forceinline__ Factors(const Vector<C>& vector, const Place& place, int p) {
    if (vector.is_compute) {
      load<C>(vector, place, p);
    } else {
      load<T>(vector, place, p);
    }
  }

 private:
  template <typename V>
  __device__ __forceinline__ void load(const Vector<C>& vector, const Place& place, int p) {
    Words<V, kPack<T>> words;
    const int count = place.count(p, kPack<T>);
    const V* const from = static_cast<const V*>(vector.data) + place.offset(p, kPack<T>);
    words.fill(V{});
    if (place.whole && count > 0) {
      load_words(words, from, 0);
    } else {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        if (i < count) words.set(i, from[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) at[i] = to_compute<C>(words.get(i));
  }
};

// NB: what is missing or zero is left out: multiplying by 1, subtracting +0 or adding -0 would
// change no bit.
template <typename T>
__device__ __forceinline__ void normalize(RowWords<T>& words, const NormParams<T>& args,
                                          const Place& place, int p,
                                          const Moments<ComputeType<T>>& m) {
  Numbers<T> y(words);
  if (args.centered) subtract(y, m.mean);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) y.at[i] = y.at[i] * m.reciprocal;
  if (args.weight.data) {
    const Factors<T> weight(args.weight, place, p);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y.at[i] = y.at[i] * weight.at[i];
  }
  if (args.bias.data) {
    const Factors<T> bias(args.bias, place, p);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) y.at[i] = y.at[i] + bias.at[i];
  }
  y.clear_from(place.count(p, kPack<T>));
  y.write(words);
}

template <typename Storage>
struct NormStage {
  using T = Storage;
  using Params = NormParams<T>;
  static constexpr int kMaxLanesLog2 = fused::kMaxLanesLog2, kMaxPacks = 8;

  template <int packs>
  __device__ static __forceinline__ void make(RowWords<T> (&row)[packs], const Params& args,
                                              const Mapping& mapping, const Place& place) {
#pragma unroll
    for (int p = 0; p < packs; ++p) load_sum(row[p], args, place, p);
    const auto for_each_pack = [&](const auto& f) {
#pragma unroll
      for (int p = 0; p < packs; ++p) f(row[p], p);
    };
    const auto moments = moments_of<T>(for_each_pack, args, mapping, place);
#pragma unroll
    for (int p = 0; p < packs; ++p) normalize(row[p], args, place, p, moments);
  }
};

// For rows that no registers hold: reads them again for each sum. A thread reads of the sum with
// the residual what it wrote itself.
template <typename T>
__global__ void __launch_bounds__(kMaxThreads<T, kMaxLanesLog2>)
    long_norm_kernel(const NormParams<T> args, const Mapping mapping) {
  const Rows<T>& rows = args.rows;
  const Place place(mapping, rows.count, rows.length);
  const int packs = static_cast<int>(divide_up(rows.length, kMaxLanes));
  const T* source = rows.input.row(place.row);
  if (args.residual.data) {
    for (int p = 0; p < packs; ++p) {
      RowWords<T> words;
      load_sum(words, args, place, p);
    }
    source = args.residual_out + place.row * rows.length;
  }
  const auto for_each_pack = [&](const auto& f) {
    for (int p = 0; p < packs; ++p) {
      RowWords<T> words;
      load_pack(words, source, place, p);
      f(words, p);
    }
  };
  const auto moments = moments_of<T>(for_each_pack, args, mapping, place);
  T* const output = rows.output + place.row * rows.length;
  for (int p = 0; p < packs; ++p) {
    RowWords<T> words;
    load_pack(words, source, place, p);
    normalize(words, args, place, p, moments);
    store_pack(words, output, place, p);
  }
}

template <typename T>
bool is_whole(const NormParams<T>& args) {
  return is_aligned(args.weight.data, 16) && is_aligned(args.bias.data, 16) &&
         is_aligned(args.residual_out, 16) &&
         (!args.residual.data || is_aligned_rows<T>(args.residual.data, args.residual.stride));
}

struct Cuda {
  template <typename T>
  static bool norm(const NormParams<T>& args) {
    const char* name = args.centered ? "layer_norm" : "rms_norm";
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (launch_rows<NormStage<T>>(args, is_whole(args), name, "float64", stream)) {
      C10_CUDA_KERNEL_LAUNCH_CHECK();
      return true;
    }
    const Rows<T>& rows = args.rows;
    if (rows.values) return false;
    Mapping mapping = map_rows<T>(rows.length, kMaxLanesLog2);
    mapping.whole = is_whole(args) && are_whole(rows);
    if (only_planned_rows(name, rows, 1 << mapping.team_log2, 0, "float64")) return true;
    long_norm_kernel<T>
        <<<static_cast<unsigned>(rows.count), static_cast<unsigned>(mapping.threads), 0, stream>>>(
            args, mapping);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return true;
  }
};

}  // namespace

bool norm_cuda(const NormCall& call) {
  const c10::cuda::CUDAGuard guard(call.input.device());
  return Launch<Cuda>::norm(call);
}

}  // namespace baraquant::fused
