// SPDX-License-Identifier: BSD-3-Clause
// The product of an input of some rows with a weight of four bits, which is decoded in registers
// (few_rows/few_rows.cuh, and on Hopper few_rows/warpgroup_rows.cuh for more rows than a warp's
// instruction takes).
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "few_rows/few_rows.cuh"
#include "few_rows/warpgroup_rows.cuh"
#include "int4/cuda/decode.cuh"
#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/scale_vectors.cuh"
#include "machine/mma.cuh"

namespace baraquant::int8_mm {

// `scales_sums`: the four threads of a row multiply columns of one group in each step, and its factor
// is multiplied by the sum. Else each number is.
template <typename T, bool is_unsigned, bool has_zero_point, bool scales_sums>
struct PackedProduct {
  static constexpr int kColumns = kPackedColumns, kWeightWords = 1, kInputWords = 2;
  static constexpr int kFragments = 4;
  static constexpr bool kMayNotFit = true;
  static constexpr auto kTypes = is_unsigned ? wgmma::Types::kUnsigned : wgmma::Types::kSigned;
  using Sum = int;
  using Order = few_rows::EvenThenOdd<kInputWords>;

  int64_t m, n, k;
  bool input_is_newest;  // what ran last in the stream wrote the input, not the weight
  ProductParams<T> args;
  int64_t groups;
  int group_shift;
  bool stores_packs;  // of four outputs

  BARAQUANT_HD const uint8_t* input_row(int64_t row) const {
    return static_cast<const uint8_t*>(args.operands.input) + row * k;
  }

  struct Group {
    uint32_t factor, zero_point;
  };
  static __device__ __forceinline__ bool fits(const Group& group) {
    if (!has_zero_point) return group.factor <= int4::kMaxFactor;
    return int4::Decoder(group.factor, group.zero_point).fits();
  }
  static __device__ __forceinline__ uint32_t group_column(uint32_t column) {
    return scales_sums ? column / kStep * kStep : column;
  }
  // Two rows of the weight. NB: what keeps them in few registers is fast.
  struct Rows {
    const uint8_t *first_values, *first_factor, *first_zero_point;
    uint32_t value_distance, group_distance;  // from the first row to the second
    int group_shift;

    __device__ __forceinline__ const uint8_t* values(int h) const {
      return h == 0 ? first_values : first_values + value_distance;
    }
    __device__ __forceinline__ void advance(uint32_t bytes) { first_values += bytes; }
    // The compiler is to keep these numbers rather than to compute them again.
    __device__ __forceinline__ void keep() {
      asm volatile("" : "+l"(first_values), "+l"(first_factor), "+l"(first_zero_point));
      asm volatile("" : "+r"(value_distance), "+r"(group_distance));
    }
    __device__ __forceinline__ void load_groups(Group (&groups)[2], uint32_t column) const {
      const uint32_t g = column >> group_shift;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t at = g + (h == 0 ? 0 : group_distance);
        groups[h] = {first_factor[at], has_zero_point ? first_zero_point[at] : kMiddle};
      }
    }
  };
  __device__ __forceinline__ Rows rows(int64_t first, int64_t second) const {
    const int4::Packed& packed = args.operands.packed;
    const auto distance = static_cast<uint32_t>(second - first);
    return {packed.values + first * (k / 2),
            packed.factor + first * groups,
            has_zero_point ? packed.zero_point + first * groups : nullptr,
            distance * static_cast<uint32_t>(k / 2),
            distance * static_cast<uint32_t>(groups),
            group_shift};
  }

  // Some fragments of a step, from `first` on, for rows and columns as mma.sync has them.
  template <bool fast, int count>
  static __device__ __forceinline__ void decode(const uint4 (&words)[2][kWeightWords],
                                                const Group (&groups)[2], int first,
                                                uint32_t (&fragments)[count][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int4::Decoder decoder(groups[h].factor, groups[h].zero_point);
#pragma unroll
      for (int f = 0; f < count; ++f) {
        const uint2 halves = decoder.template decode_halves<fast>(word_of(words[h][0], first + f));
        fragments[f][h] = halves.x, fragments[f][2 + h] = halves.y;
      }
    }
  }

  template <bool fast, int tiles>
  __device__ __forceinline__ void step(const uint4 (&words)[2][kWeightWords],
                                       const Group (&groups)[2],
                                       const uint4 (&input)[tiles][kInputWords],
                                       int (&sums)[tiles][4]) const {
    if constexpr (scales_sums && fast) {
      step_of_group(words, groups, input, sums);
    } else {
      uint32_t fragments[kFragments][4];
      decode<fast>(words, groups, 0, fragments);
      few_rows::multiply_fragments<PackedProduct>(fragments, input, sums);
    }
  }

  // sums += weight * input, wrapping.
  static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&w)[4], uint2 x) {
    if constexpr (is_unsigned) {
      BARAQUANT_MMA("m16n8k32.row.col.s32.s8.u8.s32", "+r", sums, w, x.x, x.y);
    } else {
      BARAQUANT_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r", sums, w, x.x, x.y);
    }
  }

  // Asks for the numbers that write() reads of a row of the weight.
  __device__ __forceinline__ void prefetch(int64_t column) const {
    prefetch_element(args.rescaling.weight_scale, column);
    prefetch_element(args.rescaling.bias, column);
    prefetch_element(args.rescaling.weight_sum, column);
  }
  using InputNumbers = RowScales<ComputeType<T>>;
  __device__ __forceinline__ InputNumbers input_numbers(int64_t row) const {
    return InputNumbers(args.rescaling, row);
  }
  template <int count>
  struct Columns {
    ColumnScales<ComputeType<T>> scales[count];

    __device__ __forceinline__ Columns(const PackedProduct& product, int64_t column) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (column + i < product.n) scales[i] = {product.args.rescaling, column + i};
      }
    }
  };
  template <int count>
  __device__ __forceinline__ void write(int64_t row, int64_t column, const int (&sums)[count],
                                        const InputNumbers& input,
                                        const Columns<count>& columns) const {
    Pack<T, count> results;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      results.at[i] = output_of<T>(args.rescaling, sums[i], input, columns.scales[i]);
    }
    store(results, args.output, row * n + column, static_cast<int>(min(n - column, int64_t{count})),
          stores_packs);
  }

 private:
  static constexpr uint32_t kMiddle = int4::kMiddle;
  static constexpr uint32_t kStep = few_rows::kStepThreads * kColumns;

  // (u - z) * factor * x is found as ((u - 8) * 16 * x / 16 - (z - 8) * x) * factor: the number minus
  // 8 is a signed one in the high half of a byte. NB: the sums of a group are far from overflow.
  template <int tiles>
  __device__ __forceinline__ void step_of_group(const uint4 (&words)[2][kWeightWords],
                                                const Group (&groups)[2],
                                                const uint4 (&input)[tiles][kInputWords],
                                                int (&sums)[tiles][4]) const {
    const auto times_16 = [](uint32_t x) { return masked_xor(x, 0xf0f0f0f0u, 0x80808080u); };
    uint32_t fragments[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t word = word_of(words[h][0], f);
        fragments[f][h] = times_16(word << 4), fragments[f][2 + h] = times_16(word);
      }
    }
    int parts[tiles][4] = {}, inputs[tiles][4] = {};
    few_rows::multiply_fragments<PackedProduct>(fragments, input, parts);
    if constexpr (has_zero_point) {
      constexpr uint32_t kOnes = 0x01010101u;
#pragma unroll
      for (auto& fragment : fragments) {
        for (uint32_t& bytes : fragment) bytes = kOnes;
      }
      few_rows::multiply_fragments<PackedProduct>(fragments, input, inputs);
    }
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto zero = static_cast<int>(groups[i / 2].zero_point) - int4::kMiddle;
        const auto factor = static_cast<int>(groups[i / 2].factor);
        sums[t][i] += ((parts[t][i] >> 4) - zero * inputs[t][i]) * factor;
      }
    }
  }
};

template <typename T>
void launch_packed(SpanOfProducts<T> products, void* arranged, int multiprocessors,
                   cudaStream_t stream) {
  const Operands& operands = products[0].operands;
  const int shift = few_rows::group_shift(operands.k, operands.packed.group_size);
  const auto launch = [&](auto is_unsigned, auto has_zero_point, auto scales_sums) {
    using Product = PackedProduct<T, is_unsigned(), has_zero_point(), scales_sums()>;
    const auto product_of = [&](const ProductParams<T>& args) {
      const Operands& f = args.operands;
      const bool stores_packs = f.n % 4 == 0 && is_aligned(args.output, 4 * sizeof(T));
      return Product{f.m,   f.n,         f.k, f.input_is_newest, args, f.packed.groups(),
                     shift, stores_packs};
    };
    if constexpr (!scales_sums() && sizeof(T) < 8) {
      if (arranged != nullptr) {
        return warpgroup_rows::launch(product_of(products[0]), arranged, multiprocessors, stream);
      }
    }
    std::vector<Product> all;
    std::transform(products.begin(), products.end(), std::back_inserter(all), product_of);
    few_rows::launch<Product, sizeof(T) == 2 && !is_unsigned()>(all, multiprocessors, stream);
  };
  // As measured on an H200.
  const bool scales_sums = shift >= few_rows::kStepShift && operands.m <= 16;
  with_flags(launch, operands.is_unsigned, operands.packed.zero_point != nullptr, scales_sums);
}

}  // namespace baraquant::int8_mm
