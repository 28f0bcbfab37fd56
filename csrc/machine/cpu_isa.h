// SPDX-License-Identifier: BSD-3-Clause
// CPU loops are compiled for several instruction sets in one binary, and the best that the machine
// supports is chosen at run time. The environment variable BARAQUANT_CPU_ISA names one of them, and
// the best up to that one is chosen. Only the products of integers tell those with VNNI, AMX and SDOT
// from the others. Every instruction set gives the same bits: the compiler contracts and reorders no
// arithmetic.
#pragma once

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "machine/export.h"

namespace baraquant {

// From the slowest to the fastest. A machine need not have all that come before one: those with
// AVX-512 may lack AVX-VNNI, whose vectors have 256 bits, and laptops have AVX-VNNI alone. On ARM
// the default has NEON, and kNeonDotprod has SDOT and UDOT besides, which x86 has not.
enum class CpuIsa { kDefault, kNeonDotprod, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx };

constexpr CpuIsa kCpuIsas[] = {CpuIsa::kDefault, CpuIsa::kNeonDotprod, CpuIsa::kAvx2,
                               CpuIsa::kAvxVnni, CpuIsa::kAvx512,      CpuIsa::kAvx512Vnni,
                               CpuIsa::kAmx};

BARAQUANT_API CpuIsa cpu_isa();

constexpr const char* cpu_isa_name(CpuIsa isa) {
  constexpr const char* kNames[] = {"default", "neon_dotprod", "avx2", "avx_vnni",
                                    "avx512",  "avx512_vnni",  "amx"};
  return kNames[static_cast<int>(isa)];
}

// Whether this machine has the instruction set.
inline bool supports(CpuIsa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::kAmx:
      return supports(CpuIsa::kAvx512Vnni) && __builtin_cpu_supports("amx-int8");
    case CpuIsa::kAvx512Vnni:
      return supports(CpuIsa::kAvx512) && __builtin_cpu_supports("avx512vnni");
    case CpuIsa::kAvx512:
      return supports(CpuIsa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case CpuIsa::kAvxVnni:
      return supports(CpuIsa::kAvx2) && __builtin_cpu_supports("avxvnni");
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case CpuIsa::kNeonDotprod:
    case CpuIsa::kDefault:
      break;
  }
#elif defined(__aarch64__) && defined(__linux__)
  if (isa == CpuIsa::kNeonDotprod) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
  return isa == CpuIsa::kDefault;
}

#if defined(__x86_64__)
#define BARAQUANT_TARGET(options) __attribute__((target(options)))
#else
#define BARAQUANT_TARGET(options)
#endif
// fma is there for __builtin_fma alone: the build forbids contraction, so nothing else becomes one.
#define BARAQUANT_AVX2 BARAQUANT_TARGET("avx2,fma,f16c")
#define BARAQUANT_AVX_VNNI BARAQUANT_TARGET("avx2,avxvnni,fma,f16c")
#define BARAQUANT_AVX512 \
  BARAQUANT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
#define BARAQUANT_AVX512_VNNI \
  BARAQUANT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,prefer-vector-width=512")

// NB: this names a whole architecture, so a compiler that is told of more by itself (-march) is left
// alone.
#if defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
#define BARAQUANT_NEON_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#else
#define BARAQUANT_NEON_DOTPROD
#endif

// `loop` is a callable whose operator() is always inlined, so it is compiled again inside each of
// these functions, for its instruction set.
template <typename Loop>
BARAQUANT_AVX2 void run_avx2(const Loop& loop) {
  loop();
}
template <typename Loop>
BARAQUANT_AVX512 void run_avx512(const Loop& loop) {
  loop();
}

template <typename Loop>
void run_on_isa(CpuIsa isa, const Loop& loop) {
  switch (isa) {
    case CpuIsa::kAmx:
    case CpuIsa::kAvx512Vnni:
    case CpuIsa::kAvx512:
      return run_avx512(loop);
    case CpuIsa::kAvxVnni:
    case CpuIsa::kAvx2:
      return run_avx2(loop);
    case CpuIsa::kNeonDotprod:  // what it has more is of no use to loops
    case CpuIsa::kDefault:
      return loop();
  }
}

}  // namespace baraquant
