// SPDX-License-Identifier: BSD-3-Clause
// Products of a few rows of the input with rows of the weight, and rows of the weight dequantized.
// kernels.cpp includes this file once for each instruction set, in a namespace with the set's Lanes.
// NB: no include guard.
//
// The order of a sum: the columns are cut into blocks (CpuWeight). In a block, lane i of 16
// adds the products of columns i, i + 16, i + 32, ... of each group, and one number those of the
// columns of a group that fill no 16. The lanes are then added in pairs, and the sums of the blocks
// one after the other. No thread, instruction set or other row changes it.

// The lanes that belong together are those of two halves.
inline float sum_of(const Lanes& lanes) {
  float sums[kLanes];
  lanes.store(sums);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// The columns k .. k + 15 of a row of the weight, as numbers of T.
template <typename T>
inline Lanes dequantized(const int8_t* q, float scale, float zero_point) {
  Lanes w = Lanes::widened(q);
  w.dequantize(scale, zero_point);
  if constexpr (std::is_same_v<T, BFloat16>) w.round_to_bfloat16();
  return w;
}

template <typename T>
inline T dequantized_number(int8_t q, float scale, float zero_point) {
  return from_compute<T>((static_cast<float>(q) - zero_point) * scale);
}

// Calls f(begin, end, scale, zero_point) for what lies in [begin, end) of each group of row n.
template <typename F>
inline void for_each_group(const CpuWeight& weight, int64_t n, int64_t begin, int64_t end,
                           const F& f) {
  const int64_t size = weight.group_size, groups = (weight.columns + size - 1) / size;
  for (int64_t g = begin / size, k = begin; k < end; ++g) {
    const int64_t until = std::min(end, (g + 1) * size), at = n * groups + g;
    f(k, until, weight.scale[at],
      weight.zero_point ? static_cast<float>(weight.zero_point[at]) : 0.0f);
    k = until;
  }
}

// sums[r] += row r of x, of kRows, by row n of the weight, for the columns of a block.
template <typename T, int kRows>
inline void multiply_block(const CpuWeight& weight, int64_t n, int64_t begin, int64_t end,
                           const float* x, float* sums) {
  const int8_t* const q = weight.values + n * weight.columns;
  Lanes lanes[kRows];
  float rest[kRows] = {};
  for_each_group(
      weight, n, begin, end,
      [&](int64_t k, int64_t until, float scale, float zero_point) __attribute__((always_inline)) {
        for (; k + kLanes <= until; k += kLanes) {
          const Lanes w = dequantized<T>(q + k, scale, zero_point);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            lanes[r].add_products(x + r * weight.columns + k, w);
          }
        }
        for (; k < until; ++k) {
          const float w = to_compute<float>(dequantized_number<T>(q[k], scale, zero_point));
          for (int r = 0; r < kRows; ++r) {
            rest[r] = std::fma(x[r * weight.columns + k], w, rest[r]);
          }
        }
      });
  for (int r = 0; r < kRows; ++r) sums[r] += sum_of(lanes[r]) + rest[r];
}

template <typename T, int kRows>
void multiply_rows(const CpuProduct<T>& args, int64_t row, int64_t begin, int64_t end) {
  const CpuWeight& weight = args.weight;
  const float* const x = args.input + row * weight.columns;
  float sums[kOutputs * kRows] = {};
  const auto multiply = [&](int64_t n, int64_t k) __attribute__((always_inline)) {
    multiply_block<T, kRows>(weight, n, k, std::min(weight.columns, k + weight.block()), x,
                             sums + (n - begin) * kRows);
  };
  if (kRows == 1) {  // memory is read faster in its order
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < weight.columns; k += weight.block()) multiply(n, k);
    }
  } else {
    for (int64_t k = 0; k < weight.columns; k += weight.block()) {
      for (int64_t n = begin; n < end; ++n) multiply(n, k);
    }
  }
  for (int64_t n = begin; n < end; ++n) {
    for (int r = 0; r < kRows; ++r) {
      const float sum = sums[(n - begin) * kRows + r];
      args.output[(row + r) * args.outputs + n] =
          from_compute<T>(args.bias ? sum + to_compute<float>(args.bias[n]) : sum);
    }
  }
}

// Writes the outputs begin .. end, at most kOutputs, of all rows.
template <typename T>
void multiply_outputs(const CpuProduct<T>& args, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 4 <= args.rows; row += 4) multiply_rows<T, 4>(args, row, begin, end);
  switch (args.rows - row) {
    case 3:
      return multiply_rows<T, 3>(args, row, begin, end);
    case 2:
      return multiply_rows<T, 2>(args, row, begin, end);
    case 1:
      return multiply_rows<T, 1>(args, row, begin, end);
    default:
      return;
  }
}

// Writes the rows begin .. end of the weight, as numbers of T.
template <typename T>
void dequantize_rows(const CpuWeight& weight, int64_t begin, int64_t end, T* to) {
  for (int64_t n = begin; n < end; ++n, to += weight.columns) {
    const int8_t* const q = weight.values + n * weight.columns;
    for_each_group(weight, n, 0, weight.columns,
                   [&](int64_t k, int64_t until, float scale, float zero_point)
                       __attribute__((always_inline)) {
                         for (; k + kLanes <= until; k += kLanes) {
                           dequantized<T>(q + k, scale, zero_point).store(to + k);
                         }
                         for (; k < until; ++k) {
                           to[k] = dequantized_number<T>(q[k], scale, zero_point);
                         }
                       });
  }
}
