// SPDX-License-Identifier: BSD-3-Clause
#include "machine/cpu_isa.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>

namespace baraquant {
namespace {

CpuIsa best_of_this_machine() {
  for (const CpuIsa isa : {CpuIsa::kAvx512Vnni, CpuIsa::kAvx512, CpuIsa::kAvx2}) {
    if (supports(isa)) return isa;
  }
  return CpuIsa::kDefault;
}

CpuIsa choose() {
  const CpuIsa best = best_of_this_machine();
  const char* wish = std::getenv("BARAQUANT_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return best;
  for (const CpuIsa isa : {CpuIsa::kDefault, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Vnni}) {
    if (std::string(wish) == cpu_isa_name(isa)) return isa < best ? isa : best;
  }
  TORCH_CHECK_VALUE(false,
                    "baraquant: expected BARAQUANT_CPU_ISA to be default, avx2, avx512 or "
                    "avx512_vnni, but got ",
                    wish);
}

}  // namespace

CpuIsa cpu_isa() {
  static const CpuIsa isa = choose();
  return isa;
}

}  // namespace baraquant
