// SPDX-License-Identifier: BSD-3-Clause
// Which thread takes which elements, without torch or CUDA: the shapes of the launches of rows.cuh
// and reduce.cuh, which the host chooses, and the places of the threads in them. A segment is the
// elements that share a scale (granularity/segments.h); a team is the threads that work on one
// together; a pack is a few neighbours that a thread loads at once.
//   RowMapping     a team reads a row once and keeps it in its registers
//   RunMapping     ranges of segments that lie in runs of neighbours
//   ColumnMapping  ranges of segments that lie in columns
#pragma once

#include <algorithm>
#include <cstdint>

#include "granularity/segments.h"
#include "machine/integers.h"

namespace baraquant::range {

struct Chip {
  int multiprocessors = 1;
  bool clusters = false;  // blocks can form clusters
};

constexpr int kWarp = 32, kWarpLog2 = 5;
constexpr int kMaxBlocksLog2 = 3;  // blocks of a cluster, on every chip that has clusters

// A team of threads shares a row: a power of two of threads within a warp, a whole block, or a
// whole cluster of blocks. Each thread takes `packs` packs of the row, a team's width apart.
struct RowMapping {
  int packs = 0;      // packs of a thread; 0 means that the rows are too long
  int team_log2 = 0;  // threads of a team within a warp; ignored if is_block
  bool is_block = false;
  int blocks_log2 = 0;  // blocks that share a row
  int threads = 0;      // threads of a block

  int64_t grid(int64_t rows) const {
    if (is_block) return rows << blocks_log2;
    return divide_up(rows, threads >> team_log2);
  }
};

// Shapes of teams that are larger than a warp. The first one is taken that holds the row and that
// the chip and the kernel allow. Measured on an H200 for rows of 512 to 65536 elements of 16 and 32
// bits.
struct BlockShape {
  int packs, threads, blocks_log2;
};
// For many rows, which fill the chip. If little is written, reading takes the time, so each thread
// has four packs in flight at once.
constexpr BlockShape kReadingRows[] = {
    {4, 256, 0}, {4, 256, 1}, {4, 512, 1},  {4, 256, 3},  {4, 512, 0},  {4, 512, 3}, {2, 512, 0},
    {2, 512, 1}, {2, 512, 3}, {4, 1024, 0}, {2, 1024, 0}, {4, 1024, 3}, {2, 1024, 3}};
// If as much is written as read, smaller blocks are faster: some store while others load.
constexpr BlockShape kCopyingRows[] = {{2, 160, 0},  {4, 96, 1},   {2, 224, 1},  {2, 128, 2},
                                       {4, 128, 2},  {4, 128, 3},  {2, 256, 2},  {4, 256, 3},
                                       {2, 512, 3},  {4, 512, 3},  {2, 512, 0},  {4, 512, 0},
                                       {2, 1024, 0}, {4, 1024, 0}, {2, 1024, 3}, {4, 1024, 3}};
constexpr int64_t kMaxPacksOfBlock = 320;  // no table gives a cluster to a row of at most this many
// For few rows: as many threads as there are packs, soon on several multiprocessors.
constexpr BlockShape kFewRows[] = {{1, 640, 0},  {1, 256, 2},  {1, 512, 2},  {1, 512, 3},
                                   {2, 512, 3},  {4, 512, 3},  {1, 1024, 0}, {2, 1024, 0},
                                   {4, 1024, 0}, {2, 1024, 3}, {4, 1024, 3}};

// What a kernel allows and does.
struct RowLimits {
  int packs = 4;        // the most packs of a thread: 1, 2 or 4
  int min_team = 1;     // the smallest team: threads whose packs share a byte of the mask
  bool copies = false;  // writes as many bytes as it reads
};

template <size_t n>
RowMapping map_blocks(const BlockShape (&shapes)[n], int64_t packs, int max_packs, bool clusters) {
  RowMapping m;
  m.is_block = true;
  for (const BlockShape& shape : shapes) {
    if (shape.packs > max_packs || (shape.blocks_log2 > 0 && !clusters)) continue;
    const int64_t share = int64_t(shape.packs) << shape.blocks_log2;  // a thread's, in all blocks
    const int64_t threads = divide_up(divide_up(packs, share), kWarp) * kWarp;
    if (threads > shape.threads) continue;
    m.packs = shape.packs;
    m.blocks_log2 = shape.blocks_log2;
    m.threads = static_cast<int>(threads);
    return m;
  }
  return {};
}

inline RowMapping map_rows(int64_t rows, int64_t length, int pack, const RowLimits& limits,
                           const Chip& chip) {
  const int64_t packs = divide_up(length, pack);
  // Few: with one pack for each thread, the rows do not fill a quarter of the chip.
  const bool few = rows * packs <= int64_t(512) * chip.multiprocessors;
  const int share = few ? 1 : limits.copies ? 2 : limits.packs;
  if (packs <= share * kWarp) {
    RowMapping m;
    m.packs = static_cast<int>(int64_t(1) << log2_up(packs, log2_up(share, 2)));
    m.team_log2 = log2_up(std::max<int64_t>(divide_up(packs, m.packs), limits.min_team), kWarpLog2);
    m.threads = few ? 64 : 256;
    return m;
  }
  if (few) return map_blocks(kFewRows, packs, limits.packs, chip.clusters);
  return limits.copies ? map_blocks(kCopyingRows, packs, limits.packs, chip.clusters)
                       : map_blocks(kReadingRows, packs, limits.packs, chip.clusters);
}

// A thread's share of a row that starts at `start`: the packs lane, lane + team, ... that the row
// has. lane is the thread's number in its team. A thread without a row gets a row of length 0.
// Offsets in a row fit in an int, because no row of 2^31 elements fits in the registers.
struct RowPlace {
  int64_t row = 0, start = 0;
  int length = 0, lane = 0, team = 1;

  BARAQUANT_HD int offset(int p, int pack) const { return (lane + p * team) * pack; }
  BARAQUANT_HD bool has(int p, int pack) const { return offset(p, pack) < length; }
  BARAQUANT_HD bool leads() const { return lane == 0 && length > 0; }
};

BARAQUANT_HD RowPlace place_in_row(const Segments& segments, const RowMapping& m, int64_t block,
                                   int thread) {
  RowPlace place;
  if (m.is_block) {
    place.row = block >> m.blocks_log2;
    place.lane = static_cast<int>(block - (place.row << m.blocks_log2)) * m.threads + thread;
    place.team = m.threads << m.blocks_log2;
  } else {
    place.row = (block * m.threads + thread) >> m.team_log2;
    place.team = 1 << m.team_log2;
    place.lane = thread & (place.team - 1);
  }
  if (place.row >= segments.count) return place;
  int64_t length;
  segments.span(place.row, place.start, length);
  place.length = static_cast<int>(length);
  return place;
}

constexpr int kReduceThreads = 256;  // threads of a block
constexpr int kReduceThreadsLog2 = 8;
constexpr int kBlocksOfMultiprocessor = 16;  // in turn: so many that all finish at about one time

// How many loads of a thread are in flight at once.
constexpr int run_unroll(int pack) { return pack == 1 ? 8 : 4; }
constexpr int kRowUnroll = 4;

// A team of threads (a power of two within a warp, or a block) shares a slice, which is a part of a
// segment. A thread takes the packs at begin, begin + step, ... that lie before `end`.
struct RunMapping {
  int team_log2 = 0;
  Divisor slices;            // slices of a segment
  int64_t slice_length = 0;  // a multiple of the pack

  BARAQUANT_HD bool is_block() const { return team_log2 > kWarpLog2; }
  int64_t grid(int64_t segments) const {
    return divide_up(segments * slices.value, kReduceThreads >> team_log2);
  }
};

inline RunMapping map_runs(const Segments& s, int pack, const Chip& chip) {
  const int unroll = run_unroll(pack);
  const int64_t packs = divide_up(s.length, pack);
  // Many: a warp for each segment fills at least half of the chip.
  const bool many = s.count >= int64_t(32) * chip.multiprocessors;
  // Packs of a thread: several, as long as half of the threads that the chip can hold are busy.
  const int64_t share =
      std::clamp<int64_t>(s.count * packs / (int64_t(1024) * chip.multiprocessors), 1, unroll);
  RunMapping m;
  m.team_log2 = log2_up(divide_up(packs, share), kWarpLog2);
  int64_t slices = 1;
  if (packs > kWarp * unroll * (many ? 4 : 1)) {
    m.team_log2 = kReduceThreadsLog2;
    const int64_t max_slices = packs / (2 * kReduceThreads * unroll);  // at least 2 rounds of loads
    const int64_t wanted = divide_up(kBlocksOfMultiprocessor * chip.multiprocessors, s.count);
    slices = std::max<int64_t>(std::min(wanted, max_slices), 1);
  }
  const int64_t slice = divide_up(packs, slices);
  m.slice_length = slice * pack;
  m.slices = Divisor(divide_up(packs, slice));
  return m;
}

struct RunPlace {
  int64_t segment, slice, begin, end, step;
  bool leads;
};

BARAQUANT_HD RunPlace place_in_runs(const Segments& segments, const RunMapping& m, int pack,
                                    int64_t block, int thread) {
  const int64_t task = (block * kReduceThreads + thread) >> m.team_log2;
  const int member = thread & ((1 << m.team_log2) - 1);
  const int64_t segment = m.slices.divide(task);
  const int64_t slice = task - segment * m.slices.value;
  const int64_t step = int64_t(pack) << m.team_log2;
  if (segment >= segments.count) return {segment, slice, 0, 0, step, false};
  const int64_t start = slice * m.slice_length, length = segments.length_of(segment);
  const int64_t end = start + m.slice_length;
  return {segment, slice, start + member * pack, end < length ? end : length, step, member == 0};
}

// A tile is the columns that 1 << lanes_log2 threads take with a pack each. A team of threads (a
// power of two within a warp, or a block) is that many threads wide and shares a slice of the rows
// of a tile. A thread takes the pack that begins at `column`, of the rows first, first + step, ...
// that lie before `end`.
struct ColumnMapping {
  int lanes_log2 = 0, team_log2 = 0;
  Divisor tiles, slices;  // tiles of a row; slices of a block of rows that share their segments
  int64_t slice_rows = 0;
  int64_t blocks = 0;

  BARAQUANT_HD bool is_block() const { return team_log2 > kWarpLog2; }
  int64_t grid() const {
    return divide_up(blocks * slices.value * tiles.value, kReduceThreads >> team_log2);
  }
};

inline ColumnMapping map_columns(const Segments& s, int pack, const Chip& chip) {
  ColumnMapping m;
  const int64_t column_packs = divide_up(s.columns, pack);
  m.lanes_log2 = log2_up(column_packs, kWarpLog2);
  m.tiles = Divisor(divide_up(column_packs, int64_t(1) << m.lanes_log2));
  m.blocks = s.count / s.columns;
  const int64_t tasks = m.blocks * m.tiles.value;
  const int64_t warp_rows = kWarp >> m.lanes_log2;
  int64_t slices = 1;
  if (s.length <= 16 * kRowUnroll * warp_rows && tasks >= int64_t(32) * chip.multiprocessors) {
    const int64_t rows = divide_up(s.length, kRowUnroll);
    m.team_log2 = m.lanes_log2 + log2_up(rows, kWarpLog2 - m.lanes_log2);
  } else {
    m.team_log2 = kReduceThreadsLog2;
    const int64_t round = (kReduceThreads >> m.lanes_log2) * kRowUnroll;  // rows loaded at once
    const int64_t max_slices = s.length / (4 * round);
    const int64_t wanted = divide_up(kBlocksOfMultiprocessor * chip.multiprocessors, tasks);
    slices = std::max<int64_t>(std::min(wanted, max_slices), 1);
  }
  m.slice_rows = divide_up(s.length, slices);
  m.slices = Divisor(divide_up(s.length, m.slice_rows));
  return m;
}

struct ColumnPlace {
  int64_t block, slice, tile, column;  // tile and column: the tile's and the thread's first column
  int64_t first, end, step;            // rows, counted within the block
  int lane, row_lane;                  // the thread's place in the team: along a row, down the rows
};

BARAQUANT_HD ColumnPlace place_in_columns(const Segments& segments, const ColumnMapping& m,
                                          int pack, int64_t block, int thread) {
  ColumnPlace place;
  const int64_t task = (block * kReduceThreads + thread) >> m.team_log2;
  const int member = thread & ((1 << m.team_log2) - 1);
  const int64_t slice = m.tiles.divide(task);
  place.lane = member & ((1 << m.lanes_log2) - 1);
  place.row_lane = member >> m.lanes_log2;
  place.block = m.slices.divide(slice);
  place.slice = slice - place.block * m.slices.value;
  place.tile = ((task - slice * m.tiles.value) << m.lanes_log2) * pack;
  place.column = place.tile + place.lane * pack;
  const int64_t start = place.slice * m.slice_rows;
  place.first = start + place.row_lane;
  place.step = int64_t(1) << (m.team_log2 - m.lanes_log2);
  place.end = 0;
  if (place.block >= m.blocks) return place;
  const int64_t end = start + m.slice_rows, length = segments.length_of(place.block);
  place.end = end < length ? end : length;
  return place;
}

}  // namespace baraquant::range
