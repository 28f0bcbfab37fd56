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

// A row in the shared memory of a launch. A thread reads and writes its own packs alone, which needs
// no barrier. NB: the halves of a pack lie a block's width apart, so that the threads of a warp meet
// no bank twice.
template <typename T>
class HeldRow {
 public:
  static __device__ __forceinline__ RowWords<T> get(int p) {
    const Half halves[] = {*half(p, 0), *half(p, 1)};
    RowWords<T> words;
    memcpy(&words, halves, sizeof(words));
    return words;
  }
  static __device__ __forceinline__ void set(int p, const RowWords<T>& words) {
    Half halves[2];
    memcpy(halves, &words, sizeof(words));
    *half(p, 0) = halves[0];
    *half(p, 1) = halves[1];
  }

 private:
  using Half = ::int4;
  static_assert(sizeof(RowWords<T>) == 2 * sizeof(Half));
  static __device__ __forceinline__ Half* half(int p, int h) {
    extern __shared__ Half held[];
    return held + (2 * p + h) * blockDim.x + threadIdx.x;
  }
};

// An activation is some twenty to eighty instructions, which take as long as memory does. So what
// counts is how many warps run meanwhile: a thread has registers for one pack alone, however long the
// row is. If there are `few` rows, each is shared by as many threads as a block may have.
template <typename T, bool few>
constexpr int kMaxThreads = few ? 1024 : kTeam<T>;
template <typename T, bool few>
constexpr int kMinBlocks = few ? 1 : 1280 / kTeam<T>;

// one_pack: no thread has more, so that the row needs no shared memory.
template <typename T, bool few, bool one_pack>
__global__ void __launch_bounds__(kMaxThreads<T, few>, kMinBlocks<T, few>)
    quantize_activation_kernel(const ActivationParams<T> args, const Mapping mapping) {
  wait_for_last_kernel();
  let_next_kernel_begin();
  const Rows<T>& rows = args.rows;
  const Place place(mapping, rows.count, rows.length);
  const int packs = place.packs(kPack<T>);
  const bool two_sided = !rows.rule.symmetric;
  auto seen = range::WordExtremes<T>::of_nothing();
  RowWords<T> words;
  const auto for_packs = [&](const auto& f) {
    if constexpr (one_pack) {
      if (packs > 0) f(0);
    } else {
#pragma unroll 1
      for (int p = 0; p < packs; ++p) f(p);
    }
  };
  for_packs([&](int p) {
    load_pack(words, rows.input.row(place.row), place, p);
    make_pack(words, args, place, p);
    range::add_words(seen, words, two_sided);
    if constexpr (!one_pack) HeldRow<T>::set(p, words);
  });
  finish_quantized(seen.all(two_sided), rows, mapping, place, [&](const auto& f) {
    for_packs([&](int p) { f(one_pack ? words : HeldRow<T>::get(p), p); });
  });
}

// A thread has one pack, and a row is a team of as many threads as it has packs.
template <typename T>
__global__ void __launch_bounds__(kSharedThreads)
    activation_kernel(const ActivationParams<T> args, bool whole, Divisor packs_of_row) {
  wait_for_last_kernel();
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

// Returns false, having launched nothing, if the rows do not fit into shared memory.
template <typename T, bool few>
bool launch_quantized(const ActivationParams<T>& args, bool up_is_whole, cudaStream_t stream) {
  const Rows<T>& rows = args.rows;
  Mapping mapping = map_rows<T>(rows.length, log2_up(kMaxThreads<T, few> * kPack<T>, 14));
  mapping.whole = up_is_whole && are_whole(rows);
  const int team = 1 << mapping.team_log2;
  const int64_t packs = divide_up(rows.length, int64_t(kPack<T>) * team);
  auto kernel = &quantize_activation_kernel<T, few, true>;
  int64_t bytes = 0;
  if (packs > 1) {
    kernel = &quantize_activation_kernel<T, few, false>;
    bytes = packs * mapping.threads * int64_t(sizeof(RowWords<T>));
    constexpr int64_t kNever = 256 << 10;  // what no multiprocessor has
    if (bytes > kNever || cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(bytes)) != cudaSuccess) {
      cudaGetLastError();  // forgets the error
      return false;
    }
  }
  const char* name = activation_name(args.activation);
  if (only_planned_rows(name, rows, team, static_cast<int>(packs), "")) return true;
  const LaunchShape shape{static_cast<unsigned>(mapping.grid(rows.count)), mapping.threads,
                          static_cast<size_t>(bytes)};
  const bool early = few && is_compiled_for_hopper<&quantize_activation_kernel<T, few, true>>();
  launch_waiting(kernel, early, shape, stream, args, mapping);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

struct Cuda {
  template <typename T>
  static bool activation(const ActivationParams<T>& args) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    const bool up_is_whole = !args.up.data || is_aligned_rows<T>(args.up.data, args.up.stride);
    const Rows<T>& rows = args.rows;
    if (rows.values) {
      int multiprocessors = 0;
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                             c10::cuda::current_device());
      return rows.count <= multiprocessors ? launch_quantized<T, true>(args, up_is_whole, stream)
                                           : launch_quantized<T, false>(args, up_is_whole, stream);
    }
    const char* name = activation_name(args.activation);
    if (only_planned_rows(name, rows, 1, 1, "")) return true;
    const Divisor packs(divide_up(rows.length, kPack<T>));
    const int64_t blocks = divide_up(rows.count * packs.value, kSharedThreads);
    constexpr auto kernel = &activation_kernel<T>;
    const bool early = gains_from_early_launch(blocks) && is_compiled_for_hopper<kernel>();
    launch_waiting(kernel, early, {static_cast<unsigned>(blocks), kSharedThreads}, stream, args,
                   up_is_whole && are_whole(rows), packs);
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
