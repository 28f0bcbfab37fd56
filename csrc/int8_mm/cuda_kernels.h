// SPDX-License-Identifier: BSD-3-Clause
// The kernels for all architectures from sm_80 on, as the selection launches them. They are
// compiled in one file for each type of the output, side by side. Sizes and alignments are any.
#pragma once

#include <cuda_runtime_api.h>

#include "float_types.h"
#include "int8_mm/product.h"
#include "int8_mm/tiles.h"

namespace baraquant::int8_mm {

template <typename T>
void launch_generic(GenericTile tile, const Factors& factors,
                    const Rescaling<ComputeType<T>>& rescaling, T* output, cudaStream_t stream);

// m is at most kMostVectorRows.
template <typename T>
void launch_vector(const Factors& factors, const Rescaling<ComputeType<T>>& rescaling, T* output,
                   int multiprocessors, cudaStream_t stream);

void launch_weight_sums(const int8_t* weight, int64_t n, int64_t k, int32_t* sums,
                        cudaStream_t stream);

// The rows of a matrix of bytes, each k long, with zeros behind them up to a multiple of 16.
void launch_pad_rows(const void* matrix, int64_t rows, int64_t k, void* result,
                     cudaStream_t stream);

// An unsigned input as a signed one, from which the same products follow: both the input and its
// zero point less 128. k is a multiple of 16 and both inputs begin at 16 bytes, maybe at the same;
// zero_point has as many elements as rows has numbers.
void launch_make_signed(const Factors& factors, const OfRows<int32_t>& rows, void* input,
                        int32_t* zero_point, cudaStream_t stream);

// Rows of n elements of `size` bytes (2 or 4) that are `stride` elements apart, made dense.
void launch_make_dense(const void* rows, int64_t stride, int64_t m, int64_t n, int size,
                       void* result, cudaStream_t stream);

}  // namespace baraquant::int8_mm
