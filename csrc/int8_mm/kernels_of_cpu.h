// SPDX-License-Identifier: BSD-3-Clause
// The kernel of each instruction set.
#pragma once

#include "cpu_isa.h"
#include "int8_mm/kernel_avx2_cpu.h"
#include "int8_mm/kernel_avx512_cpu.h"
#include "int8_mm/kernel_portable_cpu.h"
#include "int8_mm/kernel_vnni_cpu.h"

namespace baraquant::int8_mm {

inline const CpuKernel& kernel_of(CpuIsa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::kAvx512Vnni:
      return vnni::kKernel;
    case CpuIsa::kAvx512:
      return avx512::kKernel;
    case CpuIsa::kAvx2:
      return avx2::kKernel;
    case CpuIsa::kDefault:
      break;
  }
#endif
  return portable::kKernel;
}

}  // namespace baraquant::int8_mm
