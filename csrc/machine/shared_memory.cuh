// SPDX-License-Identifier: BSD-3-Clause
// The address of shared memory that PTX instructions take.
#pragma once

#include <cstdint>

namespace baraquant {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Reads 16 bytes at such an address.
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

}  // namespace baraquant
