// SPDX-License-Identifier: BSD-3-Clause
// BARAQUANT_HD marks the functions that host and device kernels share. They are always inlined, so
// that a CPU loop compiled for a wider instruction set compiles them for it too (see cpu_isa.h).
#pragma once

#if defined(__CUDACC__)
#define BARAQUANT_HD __host__ __device__ __forceinline__
#else
#define BARAQUANT_HD inline __attribute__((always_inline))
#endif
