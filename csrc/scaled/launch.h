// SPDX-License-Identifier: BSD-3-Clause
// From checked tensors to kernels: picks the storage type T and calls Backend::rows<T>,
// Backend::maxima<T>, Backend::columns<T> or Backend::given<T>. The CPU and CUDA share it,
// and the names of the kernels in plans; the tiles there are those of CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include "frame/dtypes.h"
#include "frame/pointers.h"
#include "scaled/operands.h"

namespace baraquant::scaled {

// A part of a row-major matrix of floating numbers.
struct Part {
  at::Tensor matrix;  // contiguous
  int64_t rows = 0, columns = 0;
  int64_t stride = 0;  // elements from a row to the next
  int64_t first = 0;   // the number of the part's first element in the matrix
};

// An int64 [2] on the device, or undefined for rounding to the nearest; see Random in math.h.
struct RandomState {
  at::Tensor state;
  uint64_t step = 0;
};

// Quantizes the rows of a part that has elements. All tensors are contiguous. values is int8 [rows,
// columns]; factor [columns], scale [rows], row_factor [rows] and maxima [columns] have the compute
// type. If maxima is defined, each becomes at least the greatest |x * row_factor| of its column. If
// sums ([pieces, columns] of the compute type) is defined, it gets those of the columns (math.h).
struct RowsCall {
  Part input;
  at::Tensor factor, values, scale, row_factor, maxima, sums;
  RandomState random;
};

// Quantizes the columns of a part that has elements, with the scales that belong to the maxima.
// values is int8 [columns, rows]; factor is [rows]; maxima and scale are [columns]. If zero_point
// (int32 [rows]) is defined, each of the sums (int32 [columns]) goes up by
// sum over rows of q * zero_point.
struct ColumnsCall {
  Part input;
  at::Tensor factor, values, scale, maxima, zero_point, sums;
  RandomState random;
};

// Quantizes the rows of a part that has elements to [quant_min, quant_max], with 0 in the middle.
// The scales [rows] are those that the rows gave. values is int8 [columns, rows].
struct GivenCall {
  Part input;
  at::Tensor scale, values;
  int64_t quant_min, quant_max;
};

template <typename Backend>
struct Launch {
  static void rows(const RowsCall& call) {
    with_floating_type(call.input.matrix.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      if (Backend::template only_planned_as<C>("scaled_quantize_rows", "row")) return;
      Backend::template rows<T>({matrix<T>(call.input), read<C>(call.factor),
                                 read<C>(call.row_factor), random(call.random),
                                 written<int8_t>(call.values), written<C>(call.scale),
                                 written<C>(call.maxima), written<C>(call.sums)});
    });
  }

  // Only the sums of a RowsCall.
  static void sums(const Part& input, const at::Tensor& sums) {
    with_floating_type(input.matrix.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      if (Backend::template only_planned_as<C>("column_sums", "columns")) return;
      Backend::template sums<T>(matrix<T>(input), written<C>(sums));
    });
  }

  // result [columns] is the sum of the pieces [pieces, columns]; both have one compute type.
  static void total(const at::Tensor& pieces, const at::Tensor& result) {
    if (Backend::template only_planned_as<double>("column_total", "columns")) return;
    const auto add = [&]<typename C>(Type<C>) {
      Backend::template total<C>(read<C>(pieces), pieces.size(0), pieces.size(1),
                                 written<C>(result));
    };
    pieces.scalar_type() == at::kDouble ? add(Type<double>{}) : add(Type<float>{});
  }

  // Only the maxima of a ColumnsCall: each becomes at least the greatest |x * factor|.
  static void maxima(const ColumnsCall& call) {
    with_floating_type(call.input.matrix.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      if (Backend::template only_planned_as<C>("scaled_maxima", "columns")) return;
      Backend::template maxima<T>(matrix<T>(call.input), read<C>(call.factor),
                                  written<C>(call.maxima));
    });
  }

  static void columns(const ColumnsCall& call) {
    with_floating_type(call.input.matrix.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      if (Backend::template only_planned_as<C>("scaled_quantize_columns", "128x64")) return;
      Backend::template columns<T>({matrix<T>(call.input), read<C>(call.factor),
                                    read<int32_t>(call.zero_point), random(call.random),
                                    read<C>(call.maxima), written<int8_t>(call.values),
                                    written<C>(call.scale), written<int32_t>(call.sums)});
    });
  }

  static void given(const GivenCall& call) {
    with_floating_type(call.input.matrix.scalar_type(), [&]<typename T>(Type<T>) {
      using C = ComputeType<T>;
      if (Backend::template only_planned_as<C>("quantize_given_transposed", "128x64")) return;
      Backend::template given<T>({matrix<T>(call.input),
                                  read<C>(call.scale),
                                  {static_cast<C>(call.quant_min), static_cast<C>(call.quant_max)},
                                  written<int8_t>(call.values)});
    });
  }

 private:
  template <typename T>
  static Matrix<T> matrix(const Part& part) {
    return {read<T>(part.matrix), part.rows, part.columns, part.stride, part.first};
  }
  static Random random(const RandomState& random) {
    return {read<int64_t>(random.state), random.step};
  }
};

// The kernels of a device, as dispatch.cpp calls them.
struct Kernels {
  void (*rows)(const RowsCall&);
  void (*sums)(const Part& input, const at::Tensor& sums);
  void (*total)(const at::Tensor& pieces, const at::Tensor& result);
  void (*maxima)(const ColumnsCall&);
  void (*columns)(const ColumnsCall&);
  void (*given)(const GivenCall&);
  // result [columns, rows] from values [rows, columns]: int8, contiguous, not empty.
  void (*transpose)(const at::Tensor& values, const at::Tensor& result);
  // Fills an int64 [2] with a state of the device's default generator that serves `count` calls.
  void (*draw)(const at::Tensor& state, int64_t count);
};

const Kernels& cpu_kernels();
const Kernels& cuda_kernels();  // raises NotImplementedError if CUDA was not compiled in

inline const Kernels& kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() ? cuda_kernels() : cpu_kernels();
}

}  // namespace baraquant::scaled
