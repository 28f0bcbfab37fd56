// SPDX-License-Identifier: BSD-3-Clause
// What the CUDA kernels of elementwise operations are given, and how they find scales.
#pragma once

#include <cstdint>

#include "affine/elementwise_ops.h"
#include "affine/qparams.h"
#include "granularity/segments.h"

namespace baraquant::affine {

constexpr int kThreads = 256;

// How packs find their scales.
enum class ScaleAccess {
  kOne,      // one scale for a whole pack
  kColumns,  // each element of a pack has its own scale, which the packs below it share
  kMixed,    // any layout: a scale is looked up for each element, unless the pack's ends agree
};

template <typename Op>
struct TransformArgs {
  const typename Op::First* first;
  const typename Op::Second* second;
  typename Op::Result* result;
  uint8_t* mask;
  int64_t numel;
  Qparams<typename Op::C> q;
  bool aligned;     // first, second and result are aligned for whole packs
  bool fast_range;  // FastestGrid accepts the range
  // For kColumns: a thread takes `slabs` times kRows rows of a block of rows that share their
  // scales.
  Segments segments;
  Divisor packs_in_row, parts_of_block;
  int64_t blocks;
  int slabs;
};

}  // namespace baraquant::affine
