// SPDX-License-Identifier: BSD-3-Clause
// A warp's product of small matrices (PTX ISA, "Warp-level matrix instructions").
#pragma once

// sums += a * b, for sums[4], a[4] and the two words of b; `types` are the shape and the types of
// mma.sync, and `constraint` that of the sums: "+r" or "+f".
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define BARAQUANT_MMA(types, constraint, sums, a, b, next_b)                               \
  asm("mma.sync.aligned." types                                                            \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                 \
      : constraint(sums[0]), constraint(sums[1]), constraint(sums[2]), constraint(sums[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(next_b))
#else
#define BARAQUANT_MMA(types, constraint, sums, a, b, next_b) static_cast<void>(0)
#endif
