// SPDX-License-Identifier: BSD-3-Clause
// Transposes bytes through shared memory. A tile has 128 rows and some columns of the source. In
// phase one, a lane writes a word with the bytes of four neighbouring rows for each of its columns.
// In phase two, eight lanes write the 128 bytes of a column, 16 each.
#pragma once

#include <cstdint>

namespace baraquant::scaled {

constexpr int kTileThreads = 256;
constexpr int kTileWarps = kTileThreads / 32;
constexpr int kTileRows = 128;
constexpr int kRowsOfLane = 4;

// Neither phase meets a bank twice: a column's words are followed by one that is not used, and 32
// columns by four, for the lanes of columns.cu are 8 columns apart.
template <int columns>
class ByteTile {
  static constexpr int kWords = kTileRows / 4;

 public:
  __device__ __forceinline__ uint32_t& at(int column, int word) {
    return words_[column * (kWords + 1) + column / 32 * 4 + word];
  }
  __device__ __forceinline__ const uint32_t* words_of(int column) const {
    return words_ + column * (kWords + 1) + column / 32 * 4;
  }

 private:
  uint32_t words_[columns * (kWords + 1) + (columns - 1) / 32 * 4];
};

// out[j] has byte j of a, b, c and d.
__device__ __forceinline__ void transpose_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                                uint32_t (&out)[4]) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// Where a tile goes: to rows n .. of `result`, a matrix [columns, rows], from column m on.
struct TileTarget {
  int8_t* result;
  int64_t rows, columns;  // of the source
  int piece;              // the bytes of an access that all rows of the result are aligned for
};

// The greatest access of 16, 4 or 1 bytes that fits each row of the result.
inline int piece_of(const int8_t* result, int64_t rows) {
  for (const int piece : {16, 4}) {
    if (rows % piece == 0 && reinterpret_cast<uintptr_t>(result) % piece == 0) return piece;
  }
  return 1;
}

// Phase two. The block has synchronized after phase one.
template <int columns>
__device__ __forceinline__ void write_tile(const ByteTile<columns>& tile, const TileTarget& to,
                                           int64_t n, int64_t m) {
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8;
  const int64_t begin = m + chunk * 16, left = to.rows - begin;
  if (left <= 0) return;
#pragma unroll
  for (int j = thread / 8; j < columns; j += kTileThreads / 8) {
    if (n + j >= to.columns) return;
    const uint32_t* from = tile.words_of(j) + chunk * 4;
    int8_t* const target = to.result + (n + j) * to.rows + begin;
    const uint4 word{from[0], from[1], from[2], from[3]};
    if (to.piece == 16) {  // then left >= 16
      *reinterpret_cast<uint4*>(target) = word;
      continue;
    }
    const uint32_t parts[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (to.piece == 4) {
        if (4 * i < left) *reinterpret_cast<uint32_t*>(target + 4 * i) = parts[i];
        continue;
      }
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (4 * i + b < left) target[4 * i + b] = static_cast<int8_t>(parts[i] >> (8 * b));
      }
    }
  }
}

}  // namespace baraquant::scaled
