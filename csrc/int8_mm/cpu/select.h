// SPDX-License-Identifier: BSD-3-Clause
// The kernel of each instruction set.
#pragma once

#include "int8_mm/cpu/avx2.h"
#include "int8_mm/cpu/avx512.h"
#include "int8_mm/cpu/avx_vnni.h"
#include "int8_mm/cpu/neon_dotprod.h"
#include "int8_mm/cpu/portable.h"
#include "int8_mm/cpu/vnni.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm {

inline const CpuKernel& kernel_of(CpuIsa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::kAmx:
    case CpuIsa::kAvx512Vnni:
      return vnni::kKernel;
    case CpuIsa::kAvx512:
      return avx512::kKernel;
    case CpuIsa::kAvxVnni:
      return avx_vnni::kKernel;
    case CpuIsa::kAvx2:
      return avx2::kKernel;
    case CpuIsa::kNeonDotprod:
    case CpuIsa::kDefault:
      break;
  }
#elif defined(__aarch64__)
  if (isa == CpuIsa::kNeonDotprod) return neon_dotprod::kKernel;
#endif
  return portable::kKernel;
}

}  // namespace baraquant::int8_mm
