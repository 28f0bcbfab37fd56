// SPDX-License-Identifier: BSD-3-Clause
// The BARAQUANT_* macros come from setup.py.
#include "frame/build_info.h"

#if defined(__clang__)
#define BARAQUANT_COMPILER "clang " __clang_version__
#else
#define BARAQUANT_COMPILER "gcc " __VERSION__
#endif

// A library built for another torch may crash when it is loaded. Python therefore looks for this
// text in the bytes of the file first (baraquant/_library.py).
extern "C" BARAQUANT_API const char baraquant_build_record[];
__attribute__((used)) const char baraquant_build_record[] =
    "baraquant-build-record:version=" BARAQUANT_VERSION ";torch=" BARAQUANT_TORCH_VERSION ";";

namespace baraquant {
namespace {

#if defined(BARAQUANT_WITH_CUDA)
constexpr bool kWithCuda = true;
#else
constexpr bool kWithCuda = false;
#endif

#if defined(BARAQUANT_WITH_CUTLASS)
constexpr bool kWithCutlass = true;
#else
constexpr bool kWithCutlass = false;
#endif

}  // namespace

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo{BARAQUANT_VERSION,
                                   BARAQUANT_TORCH_VERSION,
                                   BARAQUANT_COMPILER,
                                   BARAQUANT_NVCC_VERSION,
                                   BARAQUANT_CUDA_ARCHITECTURES,
                                   kWithCuda,
                                   kWithCutlass};
  return kInfo;
}

}  // namespace baraquant
