// SPDX-License-Identifier: BSD-3-Clause
// What the tables of tiles have in common. Without torch or CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baraquant::int8_mm {

// Whether the index of each row is its enumerator, and its name begins with its sizes.
template <typename Info, size_t count>
constexpr bool is_table(const Info (&rows)[count]) {
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<size_t>(rows[i].tile) != i) return false;
    const char* name = rows[i].name;
    const int sizes[] = {rows[i].m, rows[i].n, rows[i].k};
    for (const int size : sizes) {
      int written = 0;
      while (*name >= '0' && *name <= '9') written = written * 10 + (*name++ - '0');
      if (written != size || (*name != 'x' && *name != '_' && *name != 0)) return false;
      if (*name != 0) ++name;
    }
  }
  return true;
}

}  // namespace baraquant::int8_mm
