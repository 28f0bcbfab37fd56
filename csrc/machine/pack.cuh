// SPDX-License-Identifier: BSD-3-Clause
// A pack is a few neighbours in memory that a thread loads and stores together: in accesses of up
// to 16 bytes if the pointer is aligned and the pack is whole, otherwise element by element.
#pragma once

#include <cstdint>

#include "machine/packed_registers.h"

namespace baraquant {

template <typename T, int size>
struct alignas(sizeof(T) * size <= 16 ? sizeof(T) * size : 16) Pack {
  static_assert((size & (size - 1)) == 0, "a pack is a power of two");
  T at[size];

  __device__ __forceinline__ T get(int i) const { return at[i]; }
};

// The type of a loaded pack: bytes are kept as elements, which are converted one by one; wider
// numbers stay in registers as they lay in memory.
template <typename T, int size>
using Loaded = std::conditional_t<sizeof(T) == 1, Pack<T, size>, Words<T, size>>;

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % (bytes < 16 ? bytes : 16) == 0;
}

// Loads elements begin .. begin + count - 1 of `data`; the rest of the pack is left as it is.
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

// Loads `size` neighbours from `begin` on. All of them must exist, and their address must be a
// multiple of their size (of 16 bytes if they are larger).
template <typename T, int size>
__device__ __forceinline__ void load_words(Words<T, size>& words, const T* data, int64_t begin) {
  words = *reinterpret_cast<const Words<T, size>*>(data + begin);
}

// Loads `count` neighbours, at least one, of any alignment. The rest of the words repeats the first
// of them, which changes no range.
template <typename T, int size>
__device__ __forceinline__ void load_some_words(Words<T, size>& words, const T* data, int64_t begin,
                                                int count) {
  words.fill(data[begin]);
#pragma unroll
  for (int i = 1; i < size; ++i) {
    if (i < count) words.set(i, data[begin + i]);
  }
}

template <typename T, int size>
__device__ __forceinline__ void load(Words<T, size>& words, const T* data, int64_t begin, int count,
                                     bool aligned) {
  if (aligned && count >= size) return load_words(words, data, begin);
  load_some_words(words, data, begin, count);
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

// Asks for an element of a vector, which is read later. The vector may be null.
template <typename T>
__device__ __forceinline__ void prefetch_element(const T* vector, int64_t at) {
  if (vector != nullptr) asm volatile("prefetch.global.L2 [%0];" ::"l"(vector + at));
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// (x & mask) | bits, and the same with ^, in one instruction: the compiler makes two of constants.
__device__ __forceinline__ uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t bits) {
  asm("lop3.b32 %0, %0, %1, %2, 0xea;\n" : "+r"(x) : "r"(mask), "r"(bits));
  return x;
}
__device__ __forceinline__ uint32_t masked_xor(uint32_t x, uint32_t mask, uint32_t bits) {
  asm("lop3.b32 %0, %0, %1, %2, 0x6a;\n" : "+r"(x) : "r"(mask), "r"(bits));
  return x;
}

// The instruction that stores 16, 8 or 4 bytes.
__device__ __forceinline__ void store_piece(::int4* to, ::int4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ void store_piece(::int2* to, ::int2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(to), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_piece(int* to, int x) { *to = x; }

// Stores `size` neighbours from `begin` on, at an address as load_words needs it. NB: by name,
// because the compiler breaks an assignment into elements where another branch stores elements.
template <typename T, int size>
__device__ __forceinline__ void store_words(const Words<T, size>& words, T* data, int64_t begin) {
  constexpr int kBytes = sizeof(words), kPiece = kBytes < 16 ? kBytes : 16;
  using Piece =
      std::conditional_t<kPiece == 16, ::int4, std::conditional_t<kPiece == 8, ::int2, int>>;
  static_assert(sizeof(Piece) == kPiece);
  Piece pieces[kBytes / kPiece];
  memcpy(pieces, &words, kBytes);
#pragma unroll
  for (int i = 0; i < kBytes / kPiece; ++i) {
    store_piece(reinterpret_cast<Piece*>(data + begin) + i, pieces[i]);
  }
}

// Stores the first `count` of the neighbours.
template <typename T, int size>
__device__ __forceinline__ void store_some_words(const Words<T, size>& words, T* data,
                                                 int64_t begin, int count) {
#pragma unroll
  for (int i = 0; i < size; ++i) {
    if (i < count) data[begin + i] = words.get(i);
  }
}

// Two numbers of T's 16 bits as they lie in memory.
template <typename T>
__device__ __forceinline__ int32_t word_of_two(float first, float second) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return bit_cast<int32_t>(__floats2bfloat162_rn(first, second));
  } else {
    return bit_cast<int32_t>(__floats2half2_rn(first, second));
  }
}

// Numbers that are computed in C as they lie in memory.
template <typename T, int size, typename C>
__device__ __forceinline__ Words<T, size> words_of(const C (&numbers)[size]) {
  Words<T, size> words;
#pragma unroll
  for (int w = 0; w < words.kCount; ++w) {
    if constexpr (kPerWord<T> == 2) {
      words.at[w] = word_of_two<T>(numbers[2 * w], numbers[2 * w + 1]);
    } else {
      words.at[w] = bit_cast<Word<T>>(from_compute<T>(numbers[w]));
    }
  }
  return words;
}

// Four bytes, the low ones of four words, as one word. NB: permutations of bytes read the low ones
// alone; shifts and ors would have to clear the others.
__device__ __forceinline__ uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

}  // namespace baraquant
