// SPDX-License-Identifier: BSD-3-Clause
// Packs of neighbours in memory: one access of up to 16 bytes where the pointer allows it and the
// pack is whole, else element by element.
#pragma once

#include <cstdint>

namespace baraquant {

template <typename T, int size>
struct alignas(sizeof(T) * size <= 16 ? sizeof(T) * size : 16) Pack {
  static_assert((size & (size - 1)) == 0, "a pack is a power of two");
  T at[size];
};

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % (bytes < 16 ? bytes : 16) == 0;
}

// Elements begin .. begin + count - 1 of `data`; the rest of the pack is left as it is.
template <typename T, int size>
__device__ __forceinline__ void load(Pack<T, size>& pack, const T* data, int64_t begin, int count,
                                     bool aligned) {
  if (aligned && count >= size) {
    pack = *reinterpret_cast<const Pack<T, size>*>(data + begin);
    return;
  }
#pragma unroll
  for (int i = 0; i < size; ++i) {
    if (i < count) pack.at[i] = data[begin + i];
  }
}

template <typename T, int size>
__device__ __forceinline__ void store(const Pack<T, size>& pack, T* data, int64_t begin, int count,
                                      bool aligned) {
  if (aligned && count >= size) {
    *reinterpret_cast<Pack<T, size>*>(data + begin) = pack;
    return;
  }
#pragma unroll
  for (int i = 0; i < size; ++i) {
    if (i < count) data[begin + i] = pack.at[i];
  }
}

}  // namespace baraquant
