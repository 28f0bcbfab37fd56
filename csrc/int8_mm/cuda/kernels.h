// SPDX-License-Identifier: BSD-3-Clause
// The kernels for all architectures from sm_80 on, which kernels.cu selects and launches. There is
// a unit for each type of the output (scripts/toolchain.py); these compile in parallel. Any size and
// alignment is allowed.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "int8_mm/cuda/tiles.h"
#include "int8_mm/operands.h"
#include "machine/float_types.h"

namespace baraquant::int8_mm {

template <typename T>
void launch_generic(GenericTile tile, const ProductParams<T>& args, cudaStream_t stream);

// One product; or some of an input that one kernel takes, of which there are instances for types of 16
// bits, with signed integers in aligned rows and weights of one form.
template <typename T>
using SpanOfProducts = std::span<const ProductParams<T>>;

// m is at most kMaxVectorRows.
template <typename T>
void launch_vector(SpanOfProducts<T> products, int multiprocessors, cudaStream_t stream);

// Products with packed weights, which takes_packed() allows. With `arranged`, memory for the input
// (few_rows/warpgroup_rows.cuh), warpgroups multiply one.
template <typename T>
void launch_packed(SpanOfProducts<T> products, void* arranged, int multiprocessors,
                   cudaStream_t stream);

// Turns sums [m, n] into outputs. A thread writes kRescaledPack neighbours of each of its rows.
constexpr int kRescaledPack = 4;
template <typename T>
void launch_rescale(const int32_t* sums, const ProductParams<T>& args, int multiprocessors,
                    cudaStream_t stream);

void launch_weight_sums(const int8_t* weight, int64_t n, int64_t k, int32_t* sums,
                        cudaStream_t stream);

// Copies the rows of a matrix of bytes, each k long, and pads them with zeros to a multiple of 16.
void launch_pad_rows(const void* matrix, int64_t rows, int64_t k, void* result,
                     cudaStream_t stream);

// Turns an unsigned input into a signed one with the same products, by subtracting 128 from the
// input and from its zero point. k is a multiple of 16. Both inputs are aligned to 16 bytes and may
// be the same. A zero point outside of uint8 counts as the nearest number in it. zero_point has as many elements as `rows` has numbers.
void launch_make_signed(const Operands& operands, const OfRows<int32_t>& rows, void* input,
                        int32_t* zero_point, cudaStream_t stream);

// Makes rows dense that have n elements of `size` bytes (2 or 4) and are `stride` elements apart.
void launch_make_dense(const void* rows, int64_t stride, int64_t m, int64_t n, int size,
                       void* result, cudaStream_t stream);

// What CUTLASS reads about each group, in memory of the device.
struct GroupTable {
  struct Shape {
    int32_t first, second, k;  // the tile's sides: m and n, or n and m if the product is swapped
  };

  const void** inputs;
  const void** weights;
  void** outputs;
  int64_t* input_strides;  // elements from one row to the next, also for the weight
  int64_t* output_strides;
  Shape* shapes;
  int32_t* begins;  // the first row of each group

  static constexpr int64_t kBytesOfGroup =
      3 * sizeof(void*) + 2 * sizeof(int64_t) + sizeof(Shape) + sizeof(int32_t);

  // `memory` has kBytesOfGroup * groups bytes and is aligned to 8 bytes.
  GroupTable(void* memory, int64_t groups)
      : inputs(static_cast<const void**>(memory)),
        weights(inputs + groups),
        outputs(const_cast<void**>(weights + groups)),
        input_strides(reinterpret_cast<int64_t*>(outputs + groups)),
        output_strides(input_strides + groups),
        shapes(reinterpret_cast<Shape*>(output_strides + groups)),
        begins(reinterpret_cast<int32_t*>(shapes + groups)) {}
};

// Fills the table, and writes zeros into the rows of the output after the last group. A row of the
// output has `stride` elements of `size` bytes, together a multiple of 16 bytes.
void launch_prepare_groups(const Operands& operands, void* output, int64_t stride, int64_t size,
                           bool swapped, const GroupTable& table, cudaStream_t stream);

}  // namespace baraquant::int8_mm
