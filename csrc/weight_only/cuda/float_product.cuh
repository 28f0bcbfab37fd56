// SPDX-License-Identifier: BSD-3-Clause
// The product of an input of float16 or bfloat16 and a weight of integers, which is dequantized in
// registers (few_rows/few_rows.cuh, few_rows/warpgroup_rows.cuh). Without torch.
#pragma once

#include <type_traits>

#include "elementwise/math.h"
#include "few_rows/few_rows.cuh"
#include "few_rows/warpgroup_rows.cuh"
#include "int4/math.h"
#include "machine/mma.cuh"
#include "machine/pack.cuh"

namespace baraquant::weight_only {

constexpr int kColumns = 32;  // that a thread multiplies in a step
constexpr int kPacked = 8;    // numbers of four bits in a word

// The four numbers of a word of int8. A byte becomes the float 2^23 and that byte: exact, and faster
// than a conversion.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto byte = 0x7540u | static_cast<unsigned>(i);
    const uint32_t bits = __byte_perm(word ^ 0x80808080u, 0x4b000000u, byte);
    q[i] = __uint_as_float(bits) - (8388608.f + 128);
  }
}

// The eight numbers of a packed word. Number i of four becomes the float 2^23 + 16^i * number; the
// rest is exact too.
__device__ __forceinline__ void widen(uint32_t word, float (&q)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kPacked; ++i) {
    const int place = i % 4 * 4;
    const uint32_t four = i < 4 ? word : word >> 16;
    const uint32_t bits = masked_or(four, 15u << place, 0x4b000000u);
    const float share = 1.f / static_cast<float>(1 << place);
    q[i] = __fmaf_rn(__uint_as_float(bits), share, -(8388608.f * share + int4::kMiddle));
  }
}

// NB: both forms of a weight are multiplied in the same order, so they give the same bits.
template <typename T, bool has_zero_point, bool is_packed>
struct FloatProduct {
  static constexpr int kColumns = weight_only::kColumns;
  static constexpr int kWeightWords = is_packed ? 1 : 2, kInputWords = 4;
  static constexpr int kFragments = 8;
  static constexpr bool kMayNotFit = false;
  static constexpr auto kTypes =
      std::is_same_v<T, BFloat16> ? wgmma::Types::kBFloat16 : wgmma::Types::kFloat16;
  using Sum = float;
  using Order = few_rows::AsInMemory<kInputWords>;

  int64_t m, n, k;
  bool input_is_newest = false;
  const T* input;             // [m, k]
  const uint8_t* values;      // [n, k] int8, or [n, k / 2]
  const float* scale;         // [n, groups]
  const int32_t* zero_point;  // the same, or null
  int64_t groups;
  int group_shift;
  const T* bias;      // [n], or null
  T* output;          // [m, n]
  bool stores_packs;  // of four outputs

  BARAQUANT_HD const uint8_t* input_row(int64_t row) const {
    return reinterpret_cast<const uint8_t*>(input + row * k);
  }

  struct Group {
    float scale, zero_point;
  };
  static __device__ __forceinline__ bool fits(const Group&) { return true; }
  static __device__ __forceinline__ uint32_t group_column(uint32_t column) { return column; }
  // Two rows of the weight.
  struct Rows {
    const uint8_t* first_values;
    const float* first_scale;
    const int32_t* first_zero_point;
    uint32_t value_distance, group_distance;  // from the first row to the second
    int group_shift;

    __device__ __forceinline__ const uint8_t* values(int h) const {
      return h == 0 ? first_values : first_values + value_distance;
    }
    __device__ __forceinline__ void advance(uint32_t bytes) { first_values += bytes; }
    // The compiler is to keep these numbers rather than to compute them again.
    __device__ __forceinline__ void keep() {
      asm volatile("" : "+l"(first_values), "+l"(first_scale), "+l"(first_zero_point));
      asm volatile("" : "+r"(value_distance), "+r"(group_distance));
    }
    __device__ __forceinline__ void load_groups(Group (&groups)[2], uint32_t column) const {
      const uint32_t g = column >> group_shift;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t at = g + (h == 0 ? 0 : group_distance);
        groups[h] = {first_scale[at],
                     has_zero_point ? static_cast<float>(first_zero_point[at]) : 0.f};
      }
    }
  };
  __device__ __forceinline__ Rows rows(int64_t first, int64_t second) const {
    constexpr int kBytes = 16 * kWeightWords;  // of kColumns
    const auto distance = static_cast<uint32_t>(second - first);
    return {values + first * (k / kColumns) * kBytes,
            scale + first * groups,
            has_zero_point ? zero_point + first * groups : nullptr,
            distance * static_cast<uint32_t>(k / kColumns * kBytes),
            distance * static_cast<uint32_t>(groups),
            group_shift};
  }

  // Some fragments of a step, from `first` on, for rows and columns as mma.sync has them.
  template <bool, int count>
  static __device__ __forceinline__ void decode(const uint4 (&words)[2][kWeightWords],
                                                const Group (&groups)[2], int first,
                                                uint32_t (&fragments)[count][4]) {
    constexpr int kFragmentsOfWord = kPairs / 2;
#pragma unroll
    for (int f = 0; f < count; f += kFragmentsOfWord) {
      const int word = (first + f) / kFragmentsOfWord;
      uint32_t a[kPairs], b[kPairs];
      dequantize(word_of(words[0][word / 4], word % 4), groups[0], a);
      dequantize(word_of(words[1][word / 4], word % 4), groups[1], b);
#pragma unroll
      for (int j = 0; j < kPairs; j += 2) {
        uint32_t (&fragment)[4] = fragments[f + j / 2];
        fragment[0] = a[j], fragment[1] = b[j], fragment[2] = a[j + 1], fragment[3] = b[j + 1];
      }
    }
  }

  template <bool fast, int tiles>
  __device__ __forceinline__ void step(const uint4 (&words)[2][kWeightWords],
                                       const Group (&groups)[2],
                                       const uint4 (&input)[tiles][kInputWords],
                                       float (&sums)[tiles][4]) const {
    uint32_t fragments[kFragments][4];
    decode<fast>(words, groups, 0, fragments);
    few_rows::multiply_fragments<FloatProduct>(fragments, input, sums);
  }

  // sums += weight * input, in float32.
  static __device__ __forceinline__ void multiply(float (&sums)[4], const uint32_t (&w)[4],
                                                  uint2 x) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      BARAQUANT_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f", sums, w, x.x, x.y);
    } else {
      BARAQUANT_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f", sums, w, x.x, x.y);
    }
  }

  // Asks for the number that write() reads of a row of the weight.
  __device__ __forceinline__ void prefetch(int64_t column) const { prefetch_element(bias, column); }
  struct InputNumbers {};
  __device__ __forceinline__ InputNumbers input_numbers(int64_t) const { return {}; }
  template <int count>
  struct Columns {
    float bias[count] = {};

    __device__ __forceinline__ Columns(const FloatProduct& product, int64_t column) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (product.bias && column + i < product.n) {
          bias[i] = to_compute<float>(product.bias[column + i]);
        }
      }
    }
  };
  template <int count>
  __device__ __forceinline__ void write(int64_t row, int64_t column, const float (&sums)[count],
                                        const InputNumbers&, const Columns<count>& columns) const {
    Pack<T, count> results;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      results.at[i] = from_compute<T>(bias ? sums[i] + columns.bias[i] : sums[i]);
    }
    store(results, output, row * n + column, static_cast<int>(min(n - column, int64_t{count})),
          stores_packs);
  }

 private:
  static constexpr int kPairs = is_packed ? 4 : 2;  // of numbers, in a word of the weight

  static __device__ __forceinline__ void dequantize(uint32_t word, const Group& group,
                                                    uint32_t (&pairs)[kPairs]) {
    float w[2 * kPairs];
    widen(word, w);
#pragma unroll
    for (float& number : w)
      number = affine::dequantized_value(number, group.scale, group.zero_point);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pairs[i] = static_cast<uint32_t>(word_of_two<T>(w[2 * i], w[2 * i + 1]));
    }
  }
};

}  // namespace baraquant::weight_only
