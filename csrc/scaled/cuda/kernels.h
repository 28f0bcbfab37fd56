// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the scaled family, as kernels.cu launches them. They are spread over several
// .cu files, which compile in parallel.
#pragma once

#include <cuda_runtime_api.h>

#include "scaled/operands.h"

namespace baraquant::scaled {

struct Place {
  int multiprocessors;
  cudaStream_t stream;
};

template <typename T>
void rows_cuda(const RowsParams<T>& args, const Place& place);
template <typename T>
void sums_cuda(const Matrix<T>& x, ComputeType<T>* sums, const Place& place);
template <typename C>
void total_cuda(const C* pieces, int64_t count, int64_t columns, C* result, const Place& place);
template <typename T>
void maxima_cuda(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima,
                 const Place& place);
template <typename T>
void columns_cuda(const ColumnsParams<T>& args, const Place& place);
template <typename T>
void given_cuda(const GivenParams<T>& args, const Place& place);

}  // namespace baraquant::scaled
