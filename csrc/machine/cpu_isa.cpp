// SPDX-License-Identifier: BSD-3-Clause
#include "machine/cpu_isa.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

namespace baraquant {
namespace {

// The one that BARAQUANT_CPU_ISA names, or the fastest whose products are this library's own: those
// of AMX are PyTorch's, and have to be asked for.
CpuIsa wished() {
  const char* const wish = std::getenv("BARAQUANT_CPU_ISA");
  if (wish == nullptr || *wish == '\0') return CpuIsa::kAvx512Vnni;
  for (const CpuIsa isa : kCpuIsas) {
    if (std::string_view(wish) == cpu_isa_name(isa)) return isa;
  }
  TORCH_CHECK_VALUE(false,
                    "baraquant: expected BARAQUANT_CPU_ISA to be default, neon_dotprod, avx2, "
                    "avx_vnni, avx512, avx512_vnni or amx, but got ",
                    wish);
}

// The best of this machine up to the one that is wished for.
CpuIsa choose() {
  const CpuIsa most = wished();
  CpuIsa best = CpuIsa::kDefault;
  for (const CpuIsa isa : kCpuIsas) {
    if (isa <= most && supports(isa)) best = isa;
  }
  return best;
}

}  // namespace

CpuIsa cpu_isa() {
  static const CpuIsa isa = choose();
  return isa;
}

}  // namespace baraquant
