// SPDX-License-Identifier: BSD-3-Clause
// The arguments of the kernels of the fused family: rows of `length` neighbours in memory. A stage
// (norm, activation, Hadamard) makes a new row of T of each; then the row is stored, or quantized
// with the scale of its own data. Without torch.
#pragma once

#include <cstdint>

#include "range/math.h"

namespace baraquant::fused {

// Row r starts at data + r * stride. Null means absent.
template <typename T>
struct Source {
  const T* data = nullptr;
  int64_t stride = 0;
  BARAQUANT_HD const T* row(int64_t r) const { return data + r * stride; }
};

// A weight or bias, one number for each element of a row: of the compute type C, or of the type of
// the rows. Null means absent.
template <typename C>
struct Vector {
  const void* data = nullptr;
  bool is_compute = false;
};

// Quantizes if `values` is given (the low byte serves int8 and uint8), else writes `output`.
template <typename T>
struct Rows {
  using C = ComputeType<T>;
  int64_t count = 0, length = 0;
  Source<T> input;
  T* output = nullptr;
  uint8_t* values = nullptr;
  C* scale = nullptr;
  int32_t* zero_point = nullptr;
  range::Rule<C> rule;
};

// y = norm(x) * weight + bias. With a residual, x is input + residual, rounded to T, and is written
// to residual_out.
template <typename T>
struct NormParams {
  using C = ComputeType<T>;
  Rows<T> rows;
  Source<T> residual;
  T* residual_out = nullptr;
  Vector<C> weight, bias;
  C eps = 0;
  bool centered = false;
};

enum class Activation { kSiluMul, kGelu, kGeluTanh };

constexpr const char* activation_name(Activation activation) {
  constexpr const char* kNames[] = {"silu_mul", "gelu", "gelu_tanh"};
  return kNames[static_cast<int>(activation)];
}

template <typename T>
struct ActivationParams {
  Rows<T> rows;
  Source<T> up;  // of silu_mul
  Activation activation = Activation::kSiluMul;
};

// Each `block` neighbours of a row, a power of two, are rotated by a Hadamard matrix: for h = 1, 2,
// 4, ... < block the elements i and i + h (h is no bit of i) become their sum and difference. Then
// all are multiplied by the factor. A row is a whole number of blocks.
template <typename T>
struct HadamardParams {
  Rows<T> rows;
  int64_t block = 1;
  ComputeType<T> factor = 1;  // 1 / sqrt(block)
};

}  // namespace baraquant::fused
