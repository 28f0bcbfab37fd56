// SPDX-License-Identifier: BSD-3-Clause
// What the CUDA kernels of elementwise operations are given, and how they find scales and columns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise/elementwise_ops.h"
#include "elementwise/qparams.h"
#include "granularity/segments.h"

namespace baraquant::affine {

constexpr int kThreads = 256;

// How packs find their scales.
enum class ScaleAccess {
  kOne,      // one scale for a whole pack
  kColumns,  // each element of a pack has its own scale, which the packs below it share
  kMixed,    // any layout: a scale is looked up for each element, unless the pack's ends agree
};

// For kColumns: rows of a block share their scales. A thread takes `slabs` times `rows` rows of a
// pack of columns, one below the other.
struct ColumnArgs {
  Segments segments;
  Divisor packs_in_row, parts_of_block;
  int64_t blocks = 0;
  int slabs = 0;

  ColumnArgs() = default;
  ColumnArgs(const ScaleMap& map, int64_t pack, int64_t rows) : segments(make_segments(map)) {
    blocks = segments.count / segments.columns;
    packs_in_row = Divisor(segments.columns / pack);
    // A thread takes more rows while some hundred thousand threads are left, enough for any chip.
    const int64_t packs = map.numel() / pack;
    const int64_t most = std::clamp<int64_t>(packs / (rows * (int64_t(1) << 18)), 1, 8);
    slabs = static_cast<int>(std::min(most, (segments.length + rows - 1) / rows));
    parts_of_block = Divisor((segments.length + slabs * rows - 1) / (slabs * rows));
  }
  int64_t threads() const { return blocks * parts_of_block.value * packs_in_row.value; }
};

// A thread's packs in columns: they start at begin, begin + next, ... as long as that is below end.
struct ColumnPlace {
  int64_t begin, next, end, first_scale;
};

template <int pack, int rows>
__device__ __forceinline__ ColumnPlace find_columns(const ColumnArgs& args) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t part = args.packs_in_row.divide(thread);
  const int64_t column = (thread - part * args.packs_in_row.value) * pack;
  const int64_t block = args.parts_of_block.divide(part);
  if (block >= args.blocks) return {0, 0, 0, 0};
  const int64_t rows_of_part = args.slabs * rows;
  const int64_t row = (part - block * args.parts_of_block.value) * rows_of_part;
  const int64_t columns = args.segments.columns;
  const int64_t start = args.segments.start(block);
  const int64_t row_end = min(args.segments.length_of(block), row + rows_of_part);
  return {(start + row) * columns + column, columns, (start + row_end) * columns,
          block * columns + column};
}

template <typename Op>
struct TransformArgs {
  const typename Op::First* first;
  const typename Op::Second* second;
  typename Op::Result* result;
  uint8_t* mask;
  int64_t numel;
  Qparams<typename Op::C> q;
  bool aligned;     // first, second, result and mask are aligned for whole packs
  bool fast_range;  // FastestGrid accepts the range
  ColumnArgs columns;
};

}  // namespace baraquant::affine
