// SPDX-License-Identifier: BSD-3-Clause
// Several calls of a kernel in one launch: the blocks of a call, along x, follow those of the call
// before. A launch costs as much time as a small call, and the last blocks of one leave a GPU half idle.
#pragma once

#include <cuda_runtime.h>

#include <span>

namespace baraquant {

constexpr int kMostTogether = 4;  // calls in a launch

// The argument of such a kernel, which is declared __grid_constant__.
template <typename Call, int most>
struct Several {
  Call calls[most];
  unsigned ends[most];  // of the blocks of each call

  // At least one call, at most `most`.
  template <typename BlocksOf>
  static Several of(std::span<const Call> given, const BlocksOf& blocks_of) {
    Several several;
    unsigned end = 0;
    for (size_t i = 0; i < most; ++i) {
      const bool is_given = i < given.size();
      several.calls[i] = given[is_given ? i : 0];
      if (is_given) end += static_cast<unsigned>(blocks_of(given[i]));
      several.ends[i] = end;
    }
    return several;
  }

  unsigned blocks() const { return ends[most - 1]; }

  // The call of a block. The block's number becomes that among the call's own.
  __device__ __forceinline__ const Call& of_block(unsigned& block) const {
    if constexpr (most == 1) return calls[0];
    int i = 0;
#pragma unroll
    for (int j = 0; j < most - 1; ++j) i += block >= ends[j];
    if (i > 0) block -= ends[i - 1];
    return calls[i];
  }
};

}  // namespace baraquant
