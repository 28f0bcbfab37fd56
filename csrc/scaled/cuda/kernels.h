// SPDX-License-Identifier: BSD-3-Clause
// The CUDA kernels of the scaled family, as launch.h calls them. They are spread over several .cu files,
// which compile in parallel.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "frame/cuda_plan.cuh"
#include "scaled/operands.h"

namespace baraquant::scaled {

struct Place {
  int multiprocessors;
  cudaStream_t stream;
};

inline Place current_place() {
  Place place{0, c10::cuda::getCurrentCUDAStream()};
  cudaDeviceGetAttribute(&place.multiprocessors, cudaDevAttrMultiProcessorCount,
                         c10::cuda::current_device());
  return place;
}

struct Cuda {
  template <typename C>
  static bool only_planned_as(const char* name, const char* tile) {
    return only_planned([&] { return cuda_plan<C>(name, tile); });
  }

  template <typename T>
  static void rows(const RowsParams<T>& args);
  template <typename T>
  static void sums(const Matrix<T>& x, ComputeType<T>* sums);
  template <typename C>
  static void total(const C* pieces, int64_t count, int64_t columns, C* result);
  template <typename T>
  static void maxima(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima);
  template <typename T>
  static void columns(const ColumnsParams<T>& args);
  template <typename T>
  static void given(const GivenParams<T>& args);
};

}  // namespace baraquant::scaled
