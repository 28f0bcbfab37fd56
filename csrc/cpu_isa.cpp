// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_isa.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace baraquant {
namespace {

CpuIsa best_of_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return CpuIsa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return CpuIsa::kAvx2;
#endif
  return CpuIsa::kDefault;
}

CpuIsa choose() {
  const CpuIsa best = best_of_this_machine();
  const char* wish = std::getenv("BARAQUANT_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return best;
  for (const CpuIsa isa : {CpuIsa::kDefault, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (std::string(wish) == cpu_isa_name(isa)) return isa < best ? isa : best;
  }
  TORCH_CHECK_VALUE(false,
                    "baraquant: expected BARAQUANT_CPU_ISA to be default, avx2 or avx512, "
                    "but got ",
                    wish);
}

}  // namespace

CpuIsa cpu_isa() {
  static const CpuIsa isa = choose();
  return isa;
}

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kDefault:
      return "default";
  }
  return "unknown";
}

}  // namespace baraquant
