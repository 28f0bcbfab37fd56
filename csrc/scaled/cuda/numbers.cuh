// SPDX-License-Identifier: BSD-3-Clause
// What the kernels of the scaled family share: packs of numbers, their random bits, magnitudes and
// the bytes that they are rounded to.
#pragma once

#include "machine/pack.cuh"
#include "scaled/operands.h"

namespace baraquant::scaled {

constexpr int kWarp = 32;

// A thread loads 32 bytes of neighbours together.
template <typename T>
constexpr int kPack = 32 / static_cast<int>(sizeof(T));
template <typename T>
using NumberWords = Words<T, kPack<T>>;

// The bits below the sign. NB: in assembly, since the compiler would make fabs of a mask, and a GPU's
// instruction for that leaves the sign of a NaN undefined (PTX ISA, abs).
__device__ __forceinline__ int32_t bits_below_sign(float x) {
  int32_t bits;
  asm("and.b32 %0, %1, 0x7fffffff;" : "=r"(bits) : "r"(bit_cast<int32_t>(x)));
  return bits;
}
__device__ __forceinline__ int64_t bits_below_sign(double x) {
  int64_t bits;
  asm("and.b64 %0, %1, 0x7fffffffffffffff;" : "=l"(bits) : "l"(bit_cast<int64_t>(x)));
  return bits;
}

// The greater of a magnitude and that of x; a NaN of any sign is greater than all.
__device__ __forceinline__ float greater(float magnitude, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(magnitude) : "f"(fabsf(x)));  // a NaN has no sign here
  return magnitude;
#else
  return bit_cast<float>(max(bit_cast<int32_t>(magnitude), bits_below_sign(x)));
#endif
}
__device__ __forceinline__ double greater(double magnitude, double x) {
  const int64_t a = bit_cast<int64_t>(magnitude), b = bits_below_sign(x);
  return bit_cast<double>(a > b ? a : b);
}

// Raises a magnitude in memory. Bits of magnitudes have their order, so the result is exact in any
// order of the threads.
__device__ __forceinline__ void raise(float* to, float value) {
  atomicMax(reinterpret_cast<unsigned*>(to), bit_cast<unsigned>(value));
}
__device__ __forceinline__ void raise(double* to, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(to), bit_cast<unsigned long long>(value));
}

// Raises the maxima of neighbouring columns, of which each lane of a warp has `size`; `count` of
// them exist from `to` on. Goes through shared memory, so that a warp raises 32 neighbours at once.
template <typename C, int size>
struct ColumnExchange {
  static constexpr int kStride = size + 16 / static_cast<int>(sizeof(C));
  C at[kWarp * kStride];

  __device__ __forceinline__ void raise_all(C* to, int64_t count, const C (&mine)[size]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < size; ++i) at[lane * kStride + i] = mine[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const int column = i * kWarp + lane;
      if (column < count) raise(to + column, at[column / size * kStride + column % size]);
    }
    __syncwarp();
  }
};

// Merges over the lanes of a warp; each of them gets the result.
template <typename C>
__device__ __forceinline__ C greatest_of_warp(C value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = greater(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// The random bits of `size` neighbours, the first of which is element `number`: two in a word.
template <int size>
class PackBits {
  static constexpr int kWords = size / 2, kOctets = (size + kOctet - 1) / kOctet;

 public:
  __device__ __forceinline__ PackBits(const Stream& stream, int64_t number) {
    const uint64_t first = static_cast<uint64_t>(number) / kOctet;
    const int skipped = static_cast<int>(number % kOctet);  // elements of the first octet
    take<0>(stream, first);
    if (skipped == 0) return;
    // Only where rows are no multiple of an octet: the words of one more, moved down.
    take<kOctets>(stream, first);
    move_down(2, (skipped & 4) != 0);
    move_down(1, (skipped & 2) != 0);
    if ((skipped & 1) == 0) return;
#pragma unroll
    for (int i = 0; i < kWords; ++i) words_[i] = __funnelshift_r(words_[i], words_[i + 1], 16);
  }
  __device__ __forceinline__ uint32_t at(int i) const {
    return (words_[i / 2] >> (i % 2 * 16)) & 0xffffu;
  }

 private:
  static constexpr int kHeld = 4 * (kOctets + 1);

  // The octets that fill the words from 0 on, or the one after them.
  template <int from>
  __device__ __forceinline__ void take(const Stream& stream, uint64_t first) {
    constexpr int to = from == 0 ? kOctets : kOctets + 1;
#pragma unroll
    for (int o = from; o < to; ++o) {
      const Octet octet = random_octet(stream, first + o);
#pragma unroll
      for (int i = 0; i < 4; ++i) words_[4 * o + i] = octet.words[i];
    }
  }
  __device__ __forceinline__ void move_down(int by, bool wanted) {
#pragma unroll
    for (int i = 0; i + by < kHeld; ++i) words_[i] = wanted ? words_[i + by] : words_[i];
  }

  uint32_t words_[kHeld];
};

// Rounds numbers of one scale, which come from the range that gave it: with 0 in the middle.
template <typename C>
class Rounder {
 public:
  Rounder() = default;
  __device__ __forceinline__ explicit Rounder(C scale,
                                              const affine::QuantRange<C>& range = int8_range<C>())
      : scale_(scale), range_(range) {
    if constexpr (kHasFast) {
      fast_ = FastColumn::accepts(scale);
      column_ = FastColumn(fast_ ? scale : 1.0f);
    }
  }
  __device__ __forceinline__ bool is_fast() const { return kHasFast && fast_; }

  // These two have the integer in the low byte; `fast` only if is_fast().
  template <bool fast>
  __device__ __forceinline__ uint32_t nearest(C v) const {
    if constexpr (fast) {
      return column_.nearest(v);
    } else {
      return static_cast<uint32_t>(round_nearest(v, scale_, range_));
    }
  }
  template <bool fast>
  __device__ __forceinline__ uint32_t stochastic(C v, uint32_t bits) const {
    if constexpr (fast) {
      return column_.stochastic(v, bits);
    } else {
      return static_cast<uint32_t>(round_stochastic(v, scale_, bits));
    }
  }

  static constexpr bool kHasFast = std::is_same_v<C, float>;

 private:
  C scale_;
  affine::QuantRange<C> range_;  // only nearest() knows another than that of int8
  bool fast_ = false;
  FastColumn column_;
};

// Calls of(std::true_type) if all are fast, else of(std::false_type): one branch for many numbers.
template <typename C, typename Of>
__device__ __forceinline__ void by_speed(bool fast, const Of& of) {
  if constexpr (Rounder<C>::kHasFast) {
    if (fast) return of(std::true_type{});
  }
  of(std::false_type{});
}

// Whether each pack of the part is whole, and aligned for accesses of 16 bytes.
template <typename T>
bool has_whole_packs(const Matrix<T>& x) {
  return is_aligned(x.data + x.first, 16) && x.columns % kPack<T> == 0 &&
         (x.rows == 1 || x.stride * sizeof(T) % 16 == 0);
}

}  // namespace baraquant::scaled
