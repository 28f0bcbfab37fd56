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

// Adds the sums of a thread's lanes in pairs of neighbours; sum_of(i) gives that of lane i.
template <int lanes, typename SumOf>
__device__ __forceinline__ double add_lanes(const SumOf& sum_of, int first = 0) {
  if constexpr (lanes == 1) {
    return sum_of(first);
  } else {
    const double sum = add_lanes<lanes / 2>(sum_of, first);
    return sum + add_lanes<lanes / 2>(sum_of, first + lanes / 2);
  }
}

// A thread's share of a row. sum(add) is over its elements x, of which each turns a sum into
// add(sum, x). A missing element is +0; with `only_present` it is left out. This share is in
// registers, and one lane is finished before the next, so that few sums are alive.
template <typename T, int packs>
struct HeldShare {
  RowWords<T> (&row)[packs];
  const Place& place;

  template <bool only_present, typename Add>
  __device__ __forceinline__ double sum(const Add& add) const {
    const int left = static_cast<int>(place.length - place.offset(0, kPack<T>));
#pragma unroll
    for (int p = 0; p < packs; ++p) forget_conversions<T>(row[p]);
    return add_lanes<kPack<T>>([&](int i) {
      double sum = 0;
#pragma unroll
      for (int p = 0; p < packs; ++p) {
        const auto x = to_compute<ComputeType<T>>(row[p].get(i));
        if (!only_present || p * kMaxLanes + i < left) sum = add(sum, x);
      }
      return sum;
    });
  }
};

// This one is in memory, and is read for each sum.
template <typename T>
struct ReadShare {
  const T* row;
  const Place& place;

  template <bool only_present, typename Add>
  __device__ __forceinline__ double sum(const Add& add) const {
    double of_lanes[kPack<T>] = {};
    for (int p = 0; place.count(p, kPack<T>) > 0; ++p) {
      RowWords<T> words;
      load_pack(words, row, place, p);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const auto x = to_compute<ComputeType<T>>(words.get(i));
        if (i < place.count(p, kPack<T>)) of_lanes[i] = add(of_lanes[i], x);
      }
    }
    return add_lanes<kPack<T>>([&](int i) { return of_lanes[i]; });
  }
};

template <typename T>
__device__ __forceinline__ void subtract(Numbers<T>& x, ComputeType<T> mean) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = x.at[i] - mean;
}

// NB: a missing +0 changes no sum, since none is -0; its difference from the mean would.
template <typename T, typename Share>
__device__ __forceinline__ Moments<ComputeType<T>> moments_of(const Share& share,
                                                              const NormParams<T>& args,
                                                              const Mapping& mapping) {
  using C = ComputeType<T>;
  __shared__ double of_warps[2][kWarp];
  C mean(0);
  double squares;
  if (args.centered) {
    const auto add = [](double sum, C x) { return sum + widened(x); };
    const double sum = add_team(share.template sum<false>(add), mapping, of_warps[0]);
    mean = mean_of<C>(sum, args.rows.length);
    const auto add_square = [&](double sum, C x) { return plus_square(sum, x - mean); };
    squares = share.template sum<true>(add_square);
  } else {
    squares = share.template sum<false>([](double sum, C x) { return plus_square(sum, x); });
  }
  return moments(mean, add_team(squares, mapping, of_warps[1]), args.rows.length, args.eps);
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
  forget_conversions<T>(words);
}

template <typename Storage>
struct NormStage {
  using T = Storage;
  using Params = NormParams<T>;
  static constexpr int threads(int) { return kTeam<T>; }
  static constexpr int registers(int packs) { return 40 + 8 * packs; }

  template <int packs>
  __device__ static __forceinline__ void make(RowWords<T> (&row)[packs], const Params& args,
                                              const Mapping& mapping, const Place& place) {
#pragma unroll
    for (int p = 0; p < packs; ++p) load_sum(row[p], args, place, p);
    const auto moments = moments_of<T>(HeldShare<T, packs>{row, place}, args, mapping);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      forget_conversions<T>(row[p]);
      normalize(row[p], args, place, p, moments);
    }
  }
};

// For rows that no registers hold: reads them again for each sum. A thread reads of the sum with
// the residual what it wrote itself.
template <typename T>
__global__ void __launch_bounds__(kTeam<T>)
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
  const auto moments = moments_of<T>(ReadShare<T>{source, place}, args, mapping);
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
