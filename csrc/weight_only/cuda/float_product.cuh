// SPDX-License-Identifier: BSD-3-Clause
// The product of an input of float16 or bfloat16 and a weight of integers, which is dequantized in
// registers (machine/few_rows.cuh, machine/shared_rows.cuh). Without torch.
#pragma once

#include <type_traits>

#include "affine/math.h"
#include "int4/math.h"
#include "machine/few_rows.cuh"
#include "machine/pack.cuh"

namespace baraquant::weight_only {

constexpr int kColumns = 32;  // that a thread multiplies in a step
constexpr int kPacked = 8;    // numbers of four bits in a word

// From a byte of a word, as the float 2^23 and that byte: exact, and faster than a conversion.
template <int zero>
__device__ __forceinline__ float float_of_byte(uint32_t word, int byte) {
  const uint32_t bits = __byte_perm(word, 0x4b000000u, 0x7540u | static_cast<unsigned>(byte));
  return __uint_as_float(bits) - (8388608.f + zero);
}

// The four numbers of a word of int8.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) q[i] = float_of_byte<128>(word ^ 0x80808080u, i);
}

// The eight numbers of a packed word.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[kPacked]) {
  const uint32_t even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[2 * i] = float_of_byte<int4::kMiddle>(even, i);
    q[2 * i + 1] = float_of_byte<int4::kMiddle>(odd, i);
  }
}

// NB: both forms of a weight are multiplied in the same order, so they give the same bits.
template <typename T, bool has_zero_point, bool is_packed>
struct FloatProduct {
  static constexpr int kColumns = weight_only::kColumns;
  static constexpr int kWeightWords = is_packed ? 1 : 2, kInputWords = 4;
  static constexpr int kFragments = 8;
  using Sum = float;

  int64_t m, n, k;
  const T* input;             // [m, k]
  const uint8_t* values;      // [n, k] int8, or [n, k / 2]
  const float* scale;         // [n, groups]
  const int32_t* zero_point;  // the same, or null
  int64_t groups;
  int group_shift;
  const T* bias;  // [n], or null
  T* output;      // [m, n]

  __device__ __forceinline__ const uint8_t* input_row(int64_t row) const {
    return reinterpret_cast<const uint8_t*>(input + row * k);
  }

  struct Group {
    float scale, zero_point;
  };
  struct Row {
    const uint8_t* values;
    const float* scale;
    const int32_t* zero_point;
    int group_shift;

    __device__ __forceinline__ Group group(uint32_t column) const {
      const uint32_t g = column >> group_shift;
      return {scale[g], has_zero_point ? static_cast<float>(zero_point[g]) : 0.f};
    }
  };
  __device__ __forceinline__ Row row(int64_t row) const {
    return {values + row * (k / kColumns) * (16 * kWeightWords), scale + row * groups,
            has_zero_point ? zero_point + row * groups : nullptr, group_shift};
  }

  static __device__ __forceinline__ void decode(const uint4 (&words)[2][kWeightWords],
                                                const Group (&groups)[2],
                                                uint32_t (&fragments)[kFragments][4]) {
#pragma unroll
    for (int i = 0; i < 4 * kWeightWords; ++i) {
      uint32_t a[kPairs], b[kPairs];
      dequantize(few_rows::word_of(words[0][i / 4], i % 4), groups[0], a);
      dequantize(few_rows::word_of(words[1][i / 4], i % 4), groups[1], b);
#pragma unroll
      for (int j = 0; j < kPairs; j += 2) {
        uint32_t (&fragment)[4] = fragments[(i * kPairs + j) / 2];
        fragment[0] = a[j], fragment[1] = b[j], fragment[2] = a[j + 1], fragment[3] = b[j + 1];
      }
    }
  }

  // sums += weight * input, in float32.
  static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&w)[4],
                                                  uint32_t x0, uint32_t x1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
          : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
          : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
    }
#endif
  }

  __device__ __forceinline__ void write(int64_t row, int64_t column, float sum) const {
    const float result = bias ? sum + to_compute<float>(bias[column]) : sum;
    output[row * n + column] = from_compute<T>(result);
  }

 private:
  static constexpr int kPairs = is_packed ? 4 : 2;  // of numbers, in a word of the weight

  static __device__ __forceinline__ void dequantize(uint32_t word, const Group& group,
                                                    uint32_t (&pairs)[kPairs]) {
    float w[2 * kPairs];
    widen(word, w);
#pragma unroll
    for (float& number : w) number = affine::dequantize(number, group.scale, group.zero_point);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i] = static_cast<uint32_t>(word_of_two<T>(w[2 * i], w[2 * i + 1]));
    }
  }
};

}  // namespace baraquant::weight_only
