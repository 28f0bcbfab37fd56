// SPDX-License-Identifier: BSD-3-Clause
// Runs a direction (directions.h) over a dense tensor on the GPU: index, load packs, compute,
// store. Bound by memory: a thread takes kUnroll packs whose widest side is 16 bytes, a block
// apart, all loaded before the first is used.
#pragma once

#include <algorithm>
#include <cstdint>

#include "affine/directions.h"
#include "affine/qparams.h"
#include "pack.cuh"

namespace baraquant::affine {

constexpr int kThreads = 256;

// How a pack finds its scales.
enum class ScaleAccess {
  kOne,    // one scale for the whole pack
  kNext,   // consecutive scales, the first at a multiple of the pack's size
  kMixed,  // any: looked up for each element, unless the pack's ends agree
};

template <typename Op>
struct TransformArgs {
  const typename Op::First* first;
  const typename Op::Second* second;
  typename Op::Result* result;
  uint8_t* mask;
  int64_t numel;
  Qparams<typename Op::C> q;
  bool aligned;         // first, second and result, for whole packs
  bool scales_aligned;  // scale and zero point, for kNext
};

template <typename Op>
struct Geometry {
  static constexpr size_t kSecondSize =
      std::is_same_v<typename Op::Second, Nothing> ? 1 : sizeof(typename Op::Second);
  static constexpr size_t kWidest =
      std::max({sizeof(typename Op::First), kSecondSize, sizeof(typename Op::Result)});
  static constexpr int kPack = 16 / kWidest;
  // Enough bytes in flight: 32 or more are read by a thread before it computes.
  static constexpr int kUnroll = sizeof(typename Op::First) * kPack >= 16 ? 2 : 4;
  static constexpr int64_t kBlockElements = int64_t(kThreads) * kPack * kUnroll;
  static_assert(kPack == 2 || kPack == 4 || kPack == 8 || kPack == 16);
};

template <typename C, int size>
struct PackScales {
  C scale[size], zero_point[size];
};

template <typename Op, ScaleAccess access>
__device__ __forceinline__ void find_scales(PackScales<typename Op::C, Geometry<Op>::kPack>& scales,
                                            const TransformArgs<Op>& args, int64_t begin,
                                            int count) {
  using C = typename Op::C;
  constexpr int kPack = Geometry<Op>::kPack;
  const Qparams<C>& q = args.q;
  if constexpr (access == ScaleAccess::kOne) {
    const int64_t index = q.map.is_single() ? 0 : q.map.index(begin);
    const C scale = q.scale_at(index), zero_point = q.zero_point_at(index);
#pragma unroll
    for (int i = 0; i < kPack; ++i) scales.scale[i] = scale, scales.zero_point[i] = zero_point;
  } else if constexpr (access == ScaleAccess::kNext) {
    const int64_t index = q.map.index(begin);
    Pack<C, kPack> scale;
    load(scale, q.scale, index, kPack, args.scales_aligned);
#pragma unroll
    for (int i = 0; i < kPack; ++i) scales.scale[i] = scale.at[i];
    if (q.zero_point) {
      Pack<int32_t, kPack> zero_point;
      load(zero_point, q.zero_point, index, kPack, args.scales_aligned);
#pragma unroll
      for (int i = 0; i < kPack; ++i) scales.zero_point[i] = static_cast<C>(zero_point.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) scales.zero_point[i] = q.zero_point_at(index + i);
    }
  } else {
    const int64_t first = q.map.index(begin), last = q.map.index(begin + count - 1);
    // Runs no shorter than a pack: where the ends agree, so does all between.
    const bool one = first == last && q.map.run() >= kPack && q.map.step() == 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i == 0 || (!one && i < count)) {
        const int64_t index = i == 0 ? first : q.map.index(begin + i);
        scales.scale[i] = q.scale_at(index);
        scales.zero_point[i] = q.zero_point_at(index);
      } else {
        scales.scale[i] = scales.scale[0];
        scales.zero_point[i] = scales.zero_point[0];
      }
    }
  }
}

// The bits of a pack's elements, in the lowest bits.
template <int size>
__device__ __forceinline__ unsigned read_bits(const uint8_t* mask, int64_t begin, int count) {
  unsigned bits = 0;
#pragma unroll
  for (int byte = 0; byte < (size + 7) / 8; ++byte) {
    if (byte * 8 < count) bits |= static_cast<unsigned>(mask[begin / 8 + byte]) << (8 * byte);
  }
  return bits >> (begin % 8);
}

// NB: all threads of the warp must come here; those past the end with count <= 0 and no bits. The
// threads of a byte are neighbours in a warp, as a block starts at a multiple of 8 elements.
template <int size>
__device__ __forceinline__ void write_bits(unsigned bits, uint8_t* mask, int64_t begin, int count) {
#pragma unroll
  for (int width = size; width < 8; width *= 2) {
    bits |= __shfl_down_sync(0xffffffffu, bits, width / size) << width;
  }
  if (count <= 0 || begin % 8 != 0) return;
#pragma unroll
  for (int byte = 0; byte < (size + 7) / 8; ++byte) {
    if (byte * 8 < count) mask[begin / 8 + byte] = static_cast<uint8_t>(bits >> (8 * byte));
  }
}

template <typename Op, ScaleAccess access>
__global__ void __launch_bounds__(kThreads) transform_kernel(const TransformArgs<Op> args) {
  using G = Geometry<Op>;
  constexpr int kPack = G::kPack, kUnroll = G::kUnroll;
  constexpr bool kHasSecond = !std::is_same_v<typename Op::Second, Nothing>;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * G::kBlockElements;

  Pack<typename Op::First, kPack> first[kUnroll];
  Pack<typename Op::Second, kPack> second[kUnroll];
  unsigned bits[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t begin = block + (u * kThreads + static_cast<int>(threadIdx.x)) * kPack;
    const int count = static_cast<int>(min(static_cast<int64_t>(kPack), args.numel - begin));
    bits[u] = 0;
    if (count <= 0) continue;
    load(first[u], args.first, begin, count, args.aligned);
    if constexpr (kHasSecond) load(second[u], args.second, begin, count, args.aligned);
    if constexpr (Op::kMask == Mask::kRead) bits[u] = read_bits<kPack>(args.mask, begin, count);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t begin = block + (u * kThreads + static_cast<int>(threadIdx.x)) * kPack;
    const int count = static_cast<int>(min(static_cast<int64_t>(kPack), args.numel - begin));
    if (count > 0) {
      PackScales<typename Op::C, kPack> scales;
      find_scales<Op, access>(scales, args, begin, count);
      Pack<typename Op::Result, kPack> result;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        typename Op::Second other{};
        if constexpr (kHasSecond) other = second[u].at[i];
        bool bit = (bits[u] >> i) & 1u;
        result.at[i] = Op::apply(first[u].at[i], other, bit, scales.scale[i], scales.zero_point[i],
                                 args.q.range);
        if constexpr (Op::kMask == Mask::kWrite) {
          if (i < count) bits[u] |= static_cast<unsigned>(bit) << i;
        }
      }
      store(result, args.result, begin, count, args.aligned);
    }
    if constexpr (Op::kMask == Mask::kWrite) write_bits<kPack>(bits[u], args.mask, begin, count);
  }
}

template <typename Op, ScaleAccess access>
void launch_transform(const TransformArgs<Op>& args, cudaStream_t stream) {
  constexpr int64_t kBlockElements = Geometry<Op>::kBlockElements;
  const int64_t blocks = (args.numel + kBlockElements - 1) / kBlockElements;
  transform_kernel<Op, access><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <typename Op>
void transform_cuda(const typename Op::First* first, const typename Op::Second* second,
                    typename Op::Result* result, uint8_t* mask, int64_t numel,
                    const Qparams<typename Op::C>& q, cudaStream_t stream) {
  using C = typename Op::C;
  constexpr int kPack = Geometry<Op>::kPack;
  TransformArgs<Op> args{first, second, result, mask, numel, q, false, false};
  args.aligned = is_aligned(first, kPack * sizeof(typename Op::First)) &&
                 is_aligned(result, kPack * sizeof(typename Op::Result)) &&
                 (second == nullptr || is_aligned(second, kPack * Geometry<Op>::kSecondSize));
  args.scales_aligned = is_aligned(q.scale, kPack * sizeof(C)) && is_aligned(q.zero_point, 16);
  if (!q.map.fits_packs(kPack)) return launch_transform<Op, ScaleAccess::kMixed>(args, stream);
  if (q.map.step() == 0) return launch_transform<Op, ScaleAccess::kOne>(args, stream);
  launch_transform<Op, ScaleAccess::kNext>(args, stream);
}

}  // namespace baraquant::affine
