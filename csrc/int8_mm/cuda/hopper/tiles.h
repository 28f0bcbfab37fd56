// SPDX-License-Identifier: BSD-3-Clause
// The tiles of a product on Hopper's tensor cores, and the choice among them. Without torch or CUDA.
#pragma once

#include <cstdint>

#include "int8_mm/cuda/tile_table.h"
#include "machine/integers.h"

namespace baraquant::int8_mm {

enum class HopperTile {
  kSwapped16x64,
  kSwapped32x64,
  kTwoSwapped32x64,
  kWarps64x32,
  kWarps64x64,
  kTwoWarps64x64,
  kCooperative64x128,
  kCooperative96x128,
  kCooperative128x128,
  kCooperative192x128,
  kCooperative256x128,
  kPingpong128x128,
};

// How the warp groups of a block share the work, in the words of CUTLASS.
enum class HopperSchedule { kPingpong, kCooperative, kWarpSpecialized };

// Microseconds: to begin and end, and for each round of tiles, of which every multiprocessor takes
// one, besides for each 4096 of k. As measured on an H100.
struct HopperTime {
  double launch = 0, round = 0, depth = 0;
};

// A row of a table defines a kernel: hopper/gemm.cuh and grouped_gemm.cuh take their template
// arguments from it.
template <typename Tile>
struct TileInfo {
  Tile tile;
  const char* name;  // in plans: m x n x k, and how the tile is computed
  int m = 0, n = 0, k = 0;
  int cluster_m = 1;     // blocks along m that load the weight together
  int cluster_n = 1;     // and along n, the input
  bool swapped = false;  // computed as y^T = w x^T, so that m may be as small as 8
  HopperSchedule schedule = HopperSchedule::kPingpong;
  int blocks = 1;        // that share a multiprocessor
  HopperTime time = {};  // none: chosen by the rows alone
  const char* reason;
};
using HopperTileInfo = TileInfo<HopperTile>;

constexpr auto kHopperTiles = table_of<HopperTileInfo>(
    {{.tile = HopperTile::kSwapped16x64,
      .name = "16x64x256_swapped",
      .swapped = true,
      .schedule = HopperSchedule::kWarpSpecialized,
      .reason =
          "m up to 16, short weights: they take the 64 rows that the instruction needs, and m its "
          "free side"},
     {.tile = HopperTile::kSwapped32x64,
      .name = "32x64x256_swapped",
      .swapped = true,
      .schedule = HopperSchedule::kWarpSpecialized,
      .reason = "m up to 32, and weights of one round of tiles"},
     {.tile = HopperTile::kTwoSwapped32x64,
      .name = "32x64x256_swapped_two_blocks",
      .swapped = true,
      .schedule = HopperSchedule::kWarpSpecialized,
      .blocks = 2,
      .reason = "m up to 32, and more tiles: one block begins while another multiplies"},
     {.tile = HopperTile::kWarps64x32,
      .name = "64x32x256_warp_specialized",
      .schedule = HopperSchedule::kWarpSpecialized,
      .reason = "m of 33 to 64: tiles so narrow that all multiprocessors stream the weights"},
     {.tile = HopperTile::kWarps64x64,
      .name = "64x64x256_warp_specialized",
      .schedule = HopperSchedule::kWarpSpecialized,
      .time = {0, 0.9, 7.5},
      .reason = "m of 33 to 128, and weights of one round of tiles"},
     {.tile = HopperTile::kTwoWarps64x64,
      .name = "64x64x256_warp_specialized_two_blocks",
      .schedule = HopperSchedule::kWarpSpecialized,
      .blocks = 2,
      .reason = "m of 33 to 64, and more tiles: one block begins while another multiplies"},
     {.tile = HopperTile::kCooperative64x128,
      .name = "64x128x128_swapped_cooperative",
      .swapped = true,
      .schedule = HopperSchedule::kCooperative,
      .time = {1.7, 1.2, 7.8},
      .reason =
          "the smallest round, for m about 256 where larger tiles leave multiprocessors idle"},
     {.tile = HopperTile::kCooperative96x128,
      .name = "96x128x128_swapped_cooperative",
      .swapped = true,
      .schedule = HopperSchedule::kCooperative,
      .time = {0.3, 2.0, 10.2},
      .reason = "m about 192 or 384, of which larger tiles compute more than there is"},
     {.tile = HopperTile::kCooperative128x128,
      .name = "128x128x128_swapped_cooperative",
      .swapped = true,
      .schedule = HopperSchedule::kCooperative,
      .time = {1.3, 3.2, 11.8},
      .reason = "grids of one round, and an odd number of tiles along m"},
     {.tile = HopperTile::kCooperative192x128,
      .name = "192x128x128_swapped_cooperative",
      .swapped = true,
      .schedule = HopperSchedule::kCooperative,
      .time = {0.3, 3.4, 16.9},
      .reason = "m about 384, 768 or 1536, where it saves a round"},
     {.tile = HopperTile::kCooperative256x128,
      .name = "256x128x128_cooperative",
      .schedule = HopperSchedule::kCooperative,
      .time = {0.4, 3.8, 21.6},
      .reason = "the least traffic, and so the least power, for each product"},
     {.tile = HopperTile::kPingpong128x128,
      .name = "128x128x128_pingpong_cluster2x1",
      .cluster_m = 2,
      .time = {3.7, 0.8, 12.6},
      .reason = "one warp group multiplies while the other stores: many rounds, and short k"}});

constexpr const HopperTileInfo& info_of(HopperTile tile) {
  return kHopperTiles[static_cast<int>(tile)];
}

inline int64_t count_tiles(const HopperTileInfo& tile, int64_t m, int64_t n) {
  return divide_up(divide_up(m, tile.m), tile.cluster_m) * tile.cluster_m * divide_up(n, tile.n);
}

constexpr int64_t kFewRows = 64;

// The memory bounds these products: all multiprocessors are to stream the weights, all the time. On an
// H100, with weights of 1024 to 28672 rows, this loses 0.2 % on average against the best of thirteen tiles,
// and at most 4 %.
inline HopperTile choose_hopper_tile_for_few_rows(int64_t m, int64_t n, int multiprocessors) {
  const bool one_round = divide_up(n, 64) <= multiprocessors;
  if (m <= 32) {
    if (!one_round) return HopperTile::kTwoSwapped32x64;
    return m <= 16 && n <= 2048 ? HopperTile::kSwapped16x64 : HopperTile::kSwapped32x64;
  }
  if (!one_round) return HopperTile::kTwoWarps64x64;
  return divide_up(n, 32) <= multiprocessors ? HopperTile::kWarps64x32 : HopperTile::kWarps64x64;
}

inline double time_of(const HopperTileInfo& tile, int64_t m, int64_t n, int64_t k,
                      int multiprocessors) {
  const int64_t rounds = divide_up(count_tiles(tile, m, n), multiprocessors);
  const double of_a_round = tile.time.round + tile.time.depth * static_cast<double>(k) / 4096;
  return tile.time.launch + static_cast<double>(rounds) * of_a_round;
}

// Of more rows, the tile that takes the least time. On an H100, of 280 products with m of 96 to 8192,
// this loses 1.3 % on average against the best of nineteen tiles, and at most 15 %.
inline HopperTile choose_hopper_tile(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  if (m <= kFewRows) return choose_hopper_tile_for_few_rows(m, n, multiprocessors);
  const HopperTileInfo* best = nullptr;
  double least = 0;
  for (const HopperTileInfo& tile : kHopperTiles) {
    if (tile.time.depth == 0) continue;
    const double time = time_of(tile, m, n, k, multiprocessors);
    if (best == nullptr || time < least) best = &tile, least = time;
  }
  return best->tile;
}

// --- grouped products on Hopper's tensor cores ---------------------------------------------------

enum class GroupedTile { k128x128, k64x256, k32x128 };

using GroupedTileInfo = TileInfo<GroupedTile>;

constexpr auto kGroupedTiles = table_of<GroupedTileInfo>(
    {{.tile = GroupedTile::k128x128,
      .name = "128x128x128_pingpong_cluster1x2",
      .cluster_n = 2,
      .reason =
          "the fastest where a group has more than 64 rows; clusters along n fit groups of any "
          "rows"},
     {.tile = GroupedTile::k64x256,
      .name = "64x256x128_pingpong_cluster1x2",
      .cluster_n = 2,
      .reason = "33 to 64 rows in a group: half as much of a tile lies beyond its end"},
     {.tile = GroupedTile::k32x128,
      .name = "32x128x256_swapped_pingpong",
      .swapped = true,
      .reason = "up to 32 rows: the weights take the 64 rows that the instruction needs, and m its "
                "free side"}});

constexpr const GroupedTileInfo& info_of(GroupedTile tile) {
  return kGroupedTiles[static_cast<int>(tile)];
}

// Chooses by the number of rows and of groups, because only the device knows how many rows each
// group has. On an H200, with 8 and 64 groups, even and uneven, the chosen tile took up to 12 %
// longer than the best of nine, and 1 % longer in the median.
inline GroupedTile choose_grouped_tile(int64_t m, int64_t groups) {
  const int64_t rows = divide_up(m, groups);
  if (rows <= 32) return GroupedTile::k32x128;
  return rows <= 64 ? GroupedTile::k64x256 : GroupedTile::k128x128;
}

}  // namespace baraquant::int8_mm
