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
  return from_compute<T>(affine::dequantized_value(static_cast<float>(q), scale, zero_point));
}

// Calls f(begin, end, g) for what lies in [begin, end) of each group g of a row.
template <typename F>
inline void for_each_group(const CpuWeight& weight, int64_t begin, int64_t end, const F& f) {
  for (int64_t g = begin / weight.group_size, k = begin; k < end; ++g) {
    const int64_t until = std::min(end, (g + 1) * weight.group_size);
    f(k, until, g);
    k = until;
  }
}

inline float zero_point_of(const CpuWeight& weight, int64_t n, int64_t g) {
  return weight.zero_point ? static_cast<float>(weight.zero_point[n * weight.groups() + g]) : 0.0f;
}

// sums[j * kRows + r] += row r of x by row n + j of the weight, for the columns of a block.
template <typename T, int kRows, int kOutputsAtOnce>
inline void multiply_block(const CpuWeight& weight, int64_t n, int64_t begin, int64_t end,
                           const float* x, float* sums) {
  const int64_t columns = weight.columns;
  const int8_t* const q = weight.values + n * columns;
  Lanes lanes[kOutputsAtOnce][kRows];
  float rest[kOutputsAtOnce][kRows] = {};
  const auto multiply = [&](int64_t k, int64_t until, int64_t g) __attribute__((always_inline)) {
    float scale[kOutputsAtOnce], zero_point[kOutputsAtOnce];
    for (int j = 0; j < kOutputsAtOnce; ++j) {
      scale[j] = weight.scale[(n + j) * weight.groups() + g];
      zero_point[j] = zero_point_of(weight, n + j, g);
    }
    for (; k + kLanes <= until; k += kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < kOutputsAtOnce; ++j) {
        const Lanes w = dequantized<T>(q + j * columns + k, scale[j], zero_point[j]);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) lanes[j][r].add_products(x + r * columns + k, w);
      }
    }
    for (; k < until; ++k) {
      for (int j = 0; j < kOutputsAtOnce; ++j) {
        const float w =
            to_compute<float>(dequantized_number<T>(q[j * columns + k], scale[j], zero_point[j]));
        for (int r = 0; r < kRows; ++r) rest[j][r] = std::fma(x[r * columns + k], w, rest[j][r]);
      }
    }
  };
  for_each_group(weight, begin, end, multiply);
  for (int j = 0; j < kOutputsAtOnce; ++j) {
    for (int r = 0; r < kRows; ++r) sums[j * kRows + r] += sum_of(lanes[j][r]) + rest[j][r];
  }
}

template <typename T, int kRows>
void multiply_rows(const CpuProduct<T>& args, int64_t row, int64_t begin, int64_t end) {
  const CpuWeight& weight = args.weight;
  const float* const x = args.input + row * weight.columns;
  float sums[kOutputs * kRows] = {};
  // For one or two rows, the sums of several outputs hide the time that an addition takes.
  constexpr int kAtOnce = 4 / kRows;
  const auto multiply = [&](int64_t n, int64_t k) __attribute__((always_inline)) {
    const int64_t until = std::min(weight.columns, k + weight.block());
    float* const to = sums + (n - begin) * kRows;
    if (n + kAtOnce <= end) {
      multiply_block<T, kRows, kAtOnce>(weight, n, k, until, x, to);
    } else {
      for (int64_t j = 0; n + j < end; ++j) {
        multiply_block<T, kRows, 1>(weight, n + j, k, until, x, to + j * kRows);
      }
    }
  };
  if (kRows == 1) {  // memory is read faster in its order
    for (int64_t n = begin; n < end; n += kAtOnce) {
      for (int64_t k = 0; k < weight.columns; k += weight.block()) multiply(n, k);
    }
  } else {
    for (int64_t k = 0; k < weight.columns; k += weight.block()) {
      for (int64_t n = begin; n < end; n += kAtOnce) multiply(n, k);
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
    const auto dequantize = [&](int64_t k, int64_t until, int64_t g)
                                __attribute__((always_inline)) {
                                  const float scale = weight.scale[n * weight.groups() + g];
                                  const float zero_point = zero_point_of(weight, n, g);
                                  for (; k + kLanes <= until; k += kLanes) {
                                    dequantized<T>(q + k, scale, zero_point).store(to + k);
                                  }
                                  for (; k < until; ++k)
                                    to[k] = dequantized_number<T>(q[k], scale, zero_point);
                                };
    for_each_group(weight, 0, weight.columns, dequantize);
  }
}
