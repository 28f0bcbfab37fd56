// SPDX-License-Identifier: BSD-3-Clause
// What the tables of tiles have in common. Without torch or CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace baraquant::int8_mm {

// Size number i of m x n x k, with which the name of a tile begins.
constexpr int size_in(const char* name, int i) {
  for (; i > 0; ++name) i -= *name == 'x';
  int size = 0;
  while (*name >= '0' && *name <= '9') size = size * 10 + (*name++ - '0');
  return size;
}

// A table of these rows, with their sizes from their names. NB: it is constant only if the index of each
// row is its enumerator, and its name begins with sizes.
template <typename Info, size_t count>
constexpr std::array<Info, count> table_of(const Info (&rows)[count]) {
  std::array<Info, count> table = std::to_array(rows);
  for (size_t i = 0; i < count; ++i) {
    Info& row = table[i];
    row.m = size_in(row.name, 0), row.n = size_in(row.name, 1), row.k = size_in(row.name, 2);
    if (static_cast<size_t>(row.tile) != i || row.m * row.n * row.k == 0) throw row.name;
  }
  return table;
}

}  // namespace baraquant::int8_mm
