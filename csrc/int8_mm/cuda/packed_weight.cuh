// SPDX-License-Identifier: BSD-3-Clause
// The product of few input rows with a weight of four bits, which is decoded in registers
// (machine/few_rows.cuh, and shared_rows.cuh where more rows meet a weight that fills the GPU).
#pragma once

#include "int4/cuda/decode.cuh"
#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/scale_vectors.cuh"
#include "machine/shared_rows.cuh"

namespace baraquant::int8_mm {

template <typename T, bool is_unsigned>
struct PackedProduct {
  static constexpr int kColumns = kPackedColumns, kWeightWords = 1, kInputWords = 2;
  static constexpr int kFragments = 4;
  using Sum = int;

  int64_t m, n, k;
  GenericParams<T> args;
  int group_shift;

  __device__ __forceinline__ const uint8_t* input_row(int64_t row) const {
    return static_cast<const uint8_t*>(args.operands.input) + row * k;
  }

  struct Group {
    uint32_t factor, zero_point;
  };
  struct Row {
    const uint8_t *values, *factor, *zero_point;
    int group_shift;

    __device__ __forceinline__ Group group(uint32_t column) const {
      const uint32_t g = column >> group_shift;
      return {factor[g], zero_point ? zero_point[g] : uint32_t{int4::kMiddle}};
    }
  };
  __device__ __forceinline__ Row row(int64_t row) const {
    const int4::Packed& packed = args.operands.packed;
    const int64_t first = row * packed.groups();
    return {packed.row(row), packed.factor + first,
            packed.zero_point ? packed.zero_point + first : nullptr, group_shift};
  }

  static __device__ __forceinline__ void decode(const uint4 (&words)[2][1],
                                                const Group (&groups)[2],
                                                uint32_t (&fragments)[kFragments][4]) {
    const int4::Decoder low(groups[0].factor, groups[0].zero_point);
    const int4::Decoder high(groups[1].factor, groups[1].zero_point);
    if (__all_sync(0xffffffffu, low.fits() && high.fits())) {
      decode_with<true>(words, low, high, fragments);
    } else {
      decode_with<false>(words, low, high, fragments);
    }
  }

  // sums += weight * input, wrapping.
  static __device__ __forceinline__ void multiply(int (&sums)[4], const uint32_t (&w)[4],
                                                  uint32_t x0, uint32_t x1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if constexpr (is_unsigned) {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
          : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
          : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
    } else {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
          : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
          : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
    }
#endif
  }

  __device__ __forceinline__ void write(int64_t row, int64_t column, int sum) const {
    using C = ComputeType<T>;
    args.output[row * n + column] =
        output_of<T>(args.rescaling, sum, RowScales<C>(args.rescaling, row),
                     ColumnScales<C>(args.rescaling, column));
  }

 private:
  template <bool fits>
  static __device__ __forceinline__ void decode_with(const uint4 (&words)[2][1],
                                                     const int4::Decoder& low,
                                                     const int4::Decoder& high,
                                                     uint32_t (&fragments)[kFragments][4]) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      const uint2 a = low.decode_word<fits>(few_rows::word_of(words[0][0], i));
      const uint2 b = high.decode_word<fits>(few_rows::word_of(words[1][0], i));
      fragments[i][0] = a.x, fragments[i][1] = b.x;
      fragments[i][2] = a.y, fragments[i][3] = b.y;
    }
  }
};

template <typename T>
void launch_packed(const Operands& operands, const Rescaling<ComputeType<T>>& rescaling, T* output,
                   int multiprocessors, cudaStream_t stream) {
  const GenericParams<T> args{operands, rescaling, output};
  const int shift = few_rows::group_shift(operands.k, operands.packed.group_size);
  const auto launch = [&]<bool is_unsigned>() {
    const PackedProduct<T, is_unsigned> product{operands.m, operands.n, operands.k, args, shift};
    // As measured on an H200.
    if (operands.m > 32 && divide_up(operands.n, shared_rows::kRows) >= multiprocessors) {
      shared_rows::launch_tiles<PackedProduct<T, is_unsigned>, 8>(product, multiprocessors, stream);
    } else {
      few_rows::launch(product, multiprocessors, stream);
    }
  };
  if (operands.is_unsigned) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
}

}  // namespace baraquant::int8_mm
