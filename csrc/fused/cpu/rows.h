// SPDX-License-Identifier: BSD-3-Clause
// What the CPU does with one row: the sums in the order of Note [Order of the sums of a row], the
// stages, and the quantization of a row that has just been made. All of it is inlined into the loop
// over rows, which is compiled for each instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementwise/cpu.h"
#include "fused/elementary.h"
#include "fused/math.h"
#include "fused/rows.h"
#include "range/cpu/reduce.h"

namespace baraquant::fused {

// Eight sums side by side. NB: passed by reference, since how they are passed by value depends on the
// instruction set.
typedef double Eight __attribute__((vector_size(64)));
constexpr int kLaneBlock = 64;  // lanes that are summed together, in registers

// The sums of neighbours in pairs, of `a` and then of `b`.
BARAQUANT_HD void add_pairs(const Eight& a, const Eight& b, Eight& sums) {
  sums = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}

// The same for all of them, a power of two, until eight are left: in sums[0].
BARAQUANT_HD void add_all_pairs(Eight* sums, int count) {
  for (; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) add_pairs(sums[2 * i], sums[2 * i + 1], sums[i]);
  }
}

// The sum of summand(x) over the row.
template <typename T, typename F>
BARAQUANT_HD double sum_of_row(const T* __restrict x, int64_t length, const F& summand) {
  using C = ComputeType<T>;
  const int64_t lanes = int64_t(1) << lanes_log2(length);
  Eight of_blocks[kMaxLanes / kLaneBlock];
  int blocks = 0;
  for (int64_t lane = 0; lane < lanes; lane += kLaneBlock) {
    if (lane >= length) {
      of_blocks[blocks++] = Eight{};
      continue;
    }
    alignas(64) double sums[kLaneBlock];
    int64_t j = lane;
    if (j + kLaneBlock <= length) {
      for (int i = 0; i < kLaneBlock; ++i) sums[i] = 0.0 + summand(to_compute<C>(x[j + i]));
      j += lanes;
    } else {
      for (double& sum : sums) sum = 0;
    }
    for (; j + kLaneBlock <= length; j += lanes) {
      for (int i = 0; i < kLaneBlock; ++i) sums[i] += summand(to_compute<C>(x[j + i]));
    }
    for (int64_t i = 0; j + i < length; ++i) sums[i] += summand(to_compute<C>(x[j + i]));
    Eight eights[kLaneBlock / 8];
    std::memcpy(eights, sums, sizeof(sums));
    add_all_pairs(eights, kLaneBlock / 8);
    of_blocks[blocks++] = eights[0];
  }
  add_all_pairs(of_blocks, blocks);
  const Eight& s = of_blocks[0];
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

template <typename T, typename C>
BARAQUANT_HD Moments<C> moments_of(const T* x, const NormParams<T>& args) {
  const int64_t length = args.rows.length;
  C mean(0);
  if (args.centered) {
    mean = mean_of<C>(
        sum_of_row(x, length, [](C v) __attribute__((always_inline)) { return widened(v); }),
        length);
  }
  const double squares = sum_of_row(
      x, length, [mean](C v) __attribute__((always_inline)) { return squared(v, mean); });
  return moments(mean, squares, length, args.eps);
}

// A weight or bias as numbers of C, converted once for a task. An absent one changes no bit of what
// it is multiplied with (1) or added to (-0).
template <typename T>
class Factors {
 public:
  using C = ComputeType<T>;
  Factors(const Vector<C>& vector, int64_t length, C absent) {
    if (vector.data && vector.is_compute) {
      data_ = static_cast<const C*>(vector.data);
      return;
    }
    own_.assign(static_cast<size_t>(length), absent);
    if (vector.data) {
      const T* from = static_cast<const T*>(vector.data);
      for (int64_t i = 0; i < length; ++i) own_[static_cast<size_t>(i)] = to_compute<C>(from[i]);
    }
    data_ = own_.data();
  }
  const C* data() const { return data_; }

 private:
  std::vector<C> own_;
  const C* data_ = nullptr;
};

// A stage is made once for each task. make(r, y) writes the new row r to y.
template <typename T>
class NormStage {
 public:
  using C = ComputeType<T>;
  explicit NormStage(const NormParams<T>& args)
      : args_(args),
        weight_(args.weight, args.rows.length, C(1)),
        bias_(args.bias, args.rows.length, C(-0.0)) {}

  BARAQUANT_HD void make(int64_t r, T* __restrict y) {
    const int64_t length = args_.rows.length;
    const T* x = args_.rows.input.row(r);
    if (args_.residual.data) {
      add(x, args_.residual.row(r), args_.residual_out + r * length, length);
      x = args_.residual_out + r * length;
    }
    write(x, moments_of<T, C>(x, args_), y, length);
  }

 private:
  BARAQUANT_HD static void add(const T* __restrict x, const T* __restrict residual,
                               T* __restrict sum, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      sum[i] = from_compute<T>(to_compute<C>(x[i]) + to_compute<C>(residual[i]));
    }
  }
  BARAQUANT_HD void write(const T* __restrict x, const Moments<C>& moments, T* __restrict y,
                          int64_t length) const {
    const Moments<C> m = moments;
    const C* __restrict const weight = weight_.data();
    const C* __restrict const bias = bias_.data();
    for (int64_t i = 0; i < length; ++i) {
      y[i] = from_compute<T>(normalized(to_compute<C>(x[i]), m) * weight[i] + bias[i]);
    }
  }

  const NormParams<T>& args_;
  Factors<T> weight_, bias_;
};

template <typename T>
class ActivationStage {
 public:
  explicit ActivationStage(const ActivationParams<T>& args) : args_(args) {}

  BARAQUANT_HD void make(int64_t r, T* __restrict y) {
    const int64_t length = args_.rows.length;
    const T* __restrict const x = args_.rows.input.row(r);
    switch (args_.activation) {
      case Activation::kSiluMul: {
        const T* __restrict const up = args_.up.row(r);
        for (int64_t i = 0; i < length; ++i) {
          y[i] = from_compute<T>(silu_for<T>(to_compute<float>(x[i])) * to_compute<float>(up[i]));
        }
        return;
      }
      case Activation::kGelu:
        for (int64_t i = 0; i < length; ++i) {
          y[i] = from_compute<T>(gelu_for<T>(to_compute<float>(x[i])));
        }
        return;
      case Activation::kGeluTanh:
        for (int64_t i = 0; i < length; ++i) {
          y[i] = from_compute<T>(gelu_tanh_for<T>(to_compute<float>(x[i])));
        }
    }
  }

 private:
  const ActivationParams<T>& args_;
};

// Every step pairs the neighbours 2i and 2i + 1 and puts their sum at i and their difference at
// i + block / 2. So the next step pairs what lay twice as far apart, and after the last step
// everything lies in its place.
template <typename T>
class HadamardStage {
 public:
  using C = ComputeType<T>;
  explicit HadamardStage(const HadamardParams<T>& args)
      : args_(args), from_(static_cast<size_t>(args.block)), to_(static_cast<size_t>(args.block)) {}

  BARAQUANT_HD void make(int64_t r, T* __restrict y) {
    const T* const x = args_.rows.input.row(r);
    for (int64_t at = 0; at < args_.rows.length; at += args_.block) rotate(x + at, y + at);
  }

 private:
  BARAQUANT_HD void rotate(const T* __restrict x, T* __restrict y) {
    const int64_t block = args_.block;
    C* from = from_.data();
    C* to = to_.data();
    for (int64_t i = 0; i < block; ++i) from[i] = to_compute<C>(x[i]);
    for (int64_t pairs = 1; pairs < block; pairs *= 2) {
      step(from, to, block / 2);
      std::swap(from, to);
    }
    const C factor = args_.factor;
    for (int64_t i = 0; i < block; ++i) y[i] = from_compute<T>(from[i] * factor);
  }
  BARAQUANT_HD static void step(const C* __restrict from, C* __restrict to, int64_t half) {
    C* __restrict const differences = to + half;
    for (int64_t i = 0; i < half; ++i) {
      const C a = from[2 * i], b = from[2 * i + 1];
      to[i] = a + b;
      differences[i] = a - b;
    }
  }

  const HadamardParams<T>& args_;
  std::vector<C> from_, to_;
};

// Quantizes row r, which lies at y, with the scale of its own data.
template <typename R, typename T>
BARAQUANT_HD void quantize_row(const Rows<T>& rows, const T* y, int64_t r) {
  using C = ComputeType<T>;
  using Op = affine::Quantize<T, uint8_t, affine::Mask::kNone>;
  R seen;
  range::extend(seen, y, rows.length);
  const range::Chosen<C> chosen = range::choose(seen, rows.rule);
  rows.scale[r] = chosen.scale;
  rows.zero_point[r] = chosen.zero_point;
  const affine::OneGrid<C> grid{
      affine::Grid<C>(chosen.scale, static_cast<C>(chosen.zero_point), rows.rule.range)};
  const affine::CpuBlock<Op> block{y, nullptr, rows.values + r * rows.length};
  affine::loop_over<Op>(block, nullptr, 0, rows.length, grid);
}

}  // namespace baraquant::fused
