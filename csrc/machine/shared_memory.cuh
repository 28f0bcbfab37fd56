// SPDX-License-Identifier: BSD-3-Clause
// The address of shared memory that PTX instructions take.
#pragma once

#include <cstdint>

namespace baraquant {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace baraquant
