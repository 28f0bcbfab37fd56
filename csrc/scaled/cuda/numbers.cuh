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

// The greater of two magnitudes; a NaN is greater than all.
__device__ __forceinline__ float greater(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return bit_cast<float>(max(bit_cast<int32_t>(a), bit_cast<int32_t>(b)));
#endif
}
__device__ __forceinline__ double greater(double a, double b) {
  const auto x = bit_cast<int64_t>(a), y = bit_cast<int64_t>(b);
  return bit_cast<double>(x > y ? x : y);
}

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

// Raises a magnitude in memory. Bits of magnitudes have their order, so the result is exact in any
// order of the threads.
__device__ __forceinline__ void raise(float* to, float value) {
  atomicMax(reinterpret_cast<unsigned*>(to), bit_cast<unsigned>(value));
}
__device__ __forceinline__ void raise(double* to, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(to), bit_cast<unsigned long long>(value));
}

// Merges over the lanes of a warp; each of them gets the result.
template <typename C>
__device__ __forceinline__ C greatest_of_warp(C value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = greater(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// The random bits of a pack whose first element is `number`.
template <typename T>
class PackBits {
  static constexpr int kCount = kPack<T> < kOctet ? 1 : kPack<T> / kOctet;

 public:
  __device__ __forceinline__ PackBits(const Stream& stream, int64_t number)
      : stream_(stream), number_(number), whole_(number % (kPack<T> < kOctet ? 4 : kOctet) == 0) {
    if (!whole_) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      octets_[i] = random_octet(stream, static_cast<uint64_t>(number) / kOctet + i);
    }
  }
  __device__ __forceinline__ uint32_t at(int i) const {
    if (!whole_) return random_bits(stream_, number_ + i);
    if constexpr (kPack<T> < kOctet) {
      const bool upper = number_ % kOctet != 0;
      const uint32_t word = upper ? octets_[0].words[2 + i / 2] : octets_[0].words[i / 2];
      return (word >> (i % 2 * 16)) & 0xffffu;
    } else {
      return octets_[i / kOctet].bits(i % kOctet);
    }
  }

 private:
  const Stream& stream_;
  int64_t number_;
  bool whole_;
  Octet octets_[kCount];
};

// Four bytes, the low ones of four words, as one word.
__device__ __forceinline__ uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Rounds numbers of one scale, which come from the range that gave it.
template <typename C>
class Rounder {
 public:
  Rounder() = default;
  __device__ __forceinline__ explicit Rounder(C scale) : scale_(scale) {
    if constexpr (kHasFast) {
      fast_ = FastColumn::accepts(scale);
      column_ = FastColumn(fast_ ? scale : 1.0f);
    }
  }
  __device__ __forceinline__ bool is_fast() const { return kHasFast && fast_; }

  // These two have the integer in the low byte; `fast` only if is_fast().
  __device__ __forceinline__ uint32_t nearest(C v, bool fast) const {
    if constexpr (kHasFast) {
      if (fast) return column_.nearest(v);
    }
    return static_cast<uint32_t>(round_nearest(v, scale_));
  }
  __device__ __forceinline__ uint32_t stochastic(C v, uint32_t bits, bool fast) const {
    if constexpr (kHasFast) {
      if (fast) return column_.stochastic(v, bits);
    }
    return static_cast<uint32_t>(round_stochastic(v, scale_, bits));
  }

 private:
  static constexpr bool kHasFast = std::is_same_v<C, float>;
  C scale_;
  bool fast_ = false;
  FastColumn column_;
};

}  // namespace baraquant::scaled
