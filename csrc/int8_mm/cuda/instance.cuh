// SPDX-License-Identifier: BSD-3-Clause
// What a unit (scripts/toolchain.py) has for one type of the output: the kernels of kernels.h.
#pragma once

#include "int8_mm/cuda/gemv.cuh"
#include "int8_mm/cuda/generic/gemm.cuh"
#include "int8_mm/cuda/packed_weight.cuh"

#define BARAQUANT_OUTPUT_TYPE(T)                                                    \
  namespace baraquant::int8_mm {                                                    \
  template void launch_generic(GenericTile, const ProductParams<T>&, cudaStream_t); \
  template void launch_vector(SpanOfProducts<T>, int, cudaStream_t);                \
  template void launch_packed(SpanOfProducts<T>, void*, int, cudaStream_t);         \
  }
