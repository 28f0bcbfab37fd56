// SPDX-License-Identifier: BSD-3-Clause
// CPU loops are compiled for several instruction sets in one binary; the machine decides at run
// time. The environment variable BARAQUANT_CPU_ISA (default, avx2 or avx512) lowers the choice.
// Every instruction set gives the same bits: none of them contracts or reorders arithmetic.
#pragma once

#include "export.h"

namespace baraquant {

enum class CpuIsa { kDefault, kAvx2, kAvx512 };

BARAQUANT_API CpuIsa cpu_isa();
BARAQUANT_API const char* cpu_isa_name(CpuIsa isa);

#if defined(__x86_64__)
#define BARAQUANT_TARGET(options) __attribute__((target(options)))
#else
#define BARAQUANT_TARGET(options)
#endif

// `loop` is a callable whose operator() is always inlined, so that it is compiled anew inside each
// of these functions.
template <typename Loop>
BARAQUANT_TARGET("avx2")
void run_avx2(const Loop& loop) {
  loop();
}
template <typename Loop>
BARAQUANT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
void run_avx512(const Loop& loop) {
  loop();
}

template <typename Loop>
void run_on_isa(CpuIsa isa, const Loop& loop) {
  switch (isa) {
    case CpuIsa::kAvx512:
      return run_avx512(loop);
    case CpuIsa::kAvx2:
      return run_avx2(loop);
    case CpuIsa::kDefault:
      return loop();
  }
}

}  // namespace baraquant
