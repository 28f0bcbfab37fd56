// SPDX-License-Identifier: BSD-3-Clause
// The tiles that the output of a CUDA product is cut into, and the choice among them, which depends
// on m, n, k and the number of multiprocessors alone. Without torch or CUDA. m counts rows of the
// input and n rows of the weight, even if a kernel swaps the two.
#pragma once

#include <cstdint>

#include "machine/host_device.h"
#include "machine/integers.h"

namespace baraquant::int8_mm {

// --- Hopper's tensor cores -----------------------------------------------------------------------

enum class HopperTile {
  kPingpong128x128,
  kCooperative256x128,
  kPingpong64x128,
  kWarps64x64,
  kSwapped32x64,
  kSwapped16x64,
  kStreamK64x128,
  kStreamK16x128,
};

// How the warp groups of a block share the work, in the words of CUTLASS.
enum class HopperSchedule { kPingpong, kCooperative, kWarpSpecialized };

// A row of the table defines a kernel: hopper/gemm.cuh takes its template arguments from it.
struct HopperTileInfo {
  HopperTile tile;
  const char* name;  // in plans: m x n x k, and how the tile is computed
  int m, n, k;
  int cluster_m;  // blocks along m that load the weight together
  bool swapped;   // computed as y^T = w x^T, so that m may be as small as 8
  HopperSchedule schedule;
  bool stream_k;  // the last wave of tiles is shared along k
  const char* reason;
};

constexpr HopperTileInfo kHopperTiles[] = {
    {.tile = HopperTile::kPingpong128x128,
     .name = "128x128x128_pingpong_cluster2x1",
     .m = 128,
     .n = 128,
     .k = 128,
     .cluster_m = 2,
     .swapped = false,
     .schedule = HopperSchedule::kPingpong,
     .stream_k = false,
     .reason = "one warp group multiplies while the other stores: the fastest where the grid has "
               "many tiles"},
    {.tile = HopperTile::kCooperative256x128,
     .name = "256x128x128_cooperative",
     .m = 256,
     .n = 128,
     .k = 128,
     .cluster_m = 1,
     .swapped = false,
     .schedule = HopperSchedule::kCooperative,
     .stream_k = false,
     .reason = "the least traffic for each product: weights far beyond L2, or a grid of one wave"},
    {.tile = HopperTile::kPingpong64x128,
     .name = "64x128x128_pingpong_cluster2x1",
     .m = 64,
     .n = 128,
     .k = 128,
     .cluster_m = 2,
     .swapped = false,
     .schedule = HopperSchedule::kPingpong,
     .stream_k = false,
     .reason = "twice the tiles of 128x128: m about 256, where those would leave multiprocessors "
               "idle"},
    {.tile = HopperTile::kWarps64x64,
     .name = "64x64x256_warp_specialized",
     .m = 64,
     .n = 64,
     .k = 256,
     .cluster_m = 1,
     .swapped = false,
     .schedule = HopperSchedule::kWarpSpecialized,
     .stream_k = false,
     .reason = "m of 33 to 128: small tiles, so that all multiprocessors stream the weights"},
    {.tile = HopperTile::kSwapped32x64,
     .name = "32x64x256_swapped",
     .m = 32,
     .n = 64,
     .k = 256,
     .cluster_m = 1,
     .swapped = true,
     .schedule = HopperSchedule::kWarpSpecialized,
     .stream_k = false,
     .reason = "m of 17 to 32: the weights take the 64 rows that the instruction needs, and m its "
               "free side"},
    {.tile = HopperTile::kSwapped16x64,
     .name = "16x64x256_swapped",
     .m = 16,
     .n = 64,
     .k = 256,
     .cluster_m = 1,
     .swapped = true,
     .schedule = HopperSchedule::kWarpSpecialized,
     .stream_k = false,
     .reason = "m up to 16: as 32x64, with half of the input's padding"},
    {.tile = HopperTile::kStreamK64x128,
     .name = "64x128x128_swapped_stream_k",
     .m = 64,
     .n = 128,
     .k = 128,
     .cluster_m = 1,
     .swapped = true,
     .schedule = HopperSchedule::kCooperative,
     .stream_k = true,
     .reason = "m of 17 to 64 on wide weights, or 256 and long k: a partly filled wave is shared "
               "along k"},
    {.tile = HopperTile::kStreamK16x128,
     .name = "16x128x256_swapped_stream_k",
     .m = 16,
     .n = 128,
     .k = 256,
     .cluster_m = 1,
     .swapped = true,
     .schedule = HopperSchedule::kCooperative,
     .stream_k = true,
     .reason = "m up to 16 on wide weights whose last wave of 16x64 tiles would be mostly idle"},
};

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
static_assert(is_table(kHopperTiles));

constexpr const HopperTileInfo& info_of(HopperTile tile) {
  return kHopperTiles[static_cast<int>(tile)];
}

inline int64_t count_tiles(const HopperTileInfo& tile, int64_t m, int64_t n) {
  return divide_up(divide_up(m, tile.m), tile.cluster_m) * tile.cluster_m * divide_up(n, tile.n);
}

// Whether waves of tiles leave at most a tenth of all multiprocessor time idle.
inline bool fills(int64_t tiles, int multiprocessors) {
  return tiles * 10 >= divide_up(tiles, multiprocessors) * multiprocessors * 9;
}

// A grid of less than one wave does not count: sharing its tiles would cost more than idling.
inline bool wastes_last_wave(int64_t tiles, int multiprocessors) {
  return tiles > multiprocessors && !fills(tiles, multiprocessors);
}

inline HopperTile choose_hopper_tile_for_few_rows(int64_t m, int64_t n, int multiprocessors) {
  const bool wasteful = wastes_last_wave(divide_up(n, 64), multiprocessors);
  if (m <= 16) return wasteful ? HopperTile::kStreamK16x128 : HopperTile::kSwapped16x64;
  if (wasteful) return HopperTile::kStreamK64x128;
  return m <= 32 ? HopperTile::kSwapped32x64 : HopperTile::kWarps64x64;
}

// The time of the busiest multiprocessor, in units of a 128 x 128 tile. The smaller tile reads more
// for each product: for the same area it takes 1.22 times as long.
inline double time_of_128x128(int64_t m, int64_t n, int multiprocessors) {
  const auto& tile = info_of(HopperTile::kPingpong128x128);
  return static_cast<double>(divide_up(count_tiles(tile, m, n), multiprocessors));
}

inline double time_of_64x128(int64_t m, int64_t n, int multiprocessors) {
  const auto& tile = info_of(HopperTile::kPingpong64x128);
  return 0.61 * static_cast<double>(divide_up(count_tiles(tile, m, n), multiprocessors));
}

inline HopperTile choose_hopper_tile(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  if (m <= 64) return choose_hopper_tile_for_few_rows(m, n, multiprocessors);
  if (m <= 128) {
    const int64_t tiles = count_tiles(info_of(HopperTile::kWarps64x64), m, n);
    return tiles <= multiprocessors ? HopperTile::kWarps64x64 : HopperTile::kPingpong64x128;
  }
  constexpr int64_t kFarBeyondL2 = int64_t(1) << 28;
  if (m > 256 && n * k > kFarBeyondL2) return HopperTile::kCooperative256x128;
  // So long a product is bound by the card's power, of which the larger tile takes less: 4 to 29 % of
  // the time, on an H100 that was hot.
  const double products = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (m > 512 && products > 0x1p36) return HopperTile::kCooperative256x128;
  // This tile cannot overlap its epilogue with another tile, so k must be long.
  const int64_t large = count_tiles(info_of(HopperTile::kCooperative256x128), m, n);
  if (m > 256 && k > 4096 && large <= multiprocessors && fills(large, multiprocessors)) {
    return HopperTile::kCooperative256x128;
  }
  const int64_t shared = count_tiles(info_of(HopperTile::kStreamK64x128), m, n);
  if (m <= 256 && k > 8192 && shared <= multiprocessors) return HopperTile::kStreamK64x128;
  const bool small = time_of_64x128(m, n, multiprocessors) < time_of_128x128(m, n, multiprocessors);
  return small ? HopperTile::kPingpong64x128 : HopperTile::kPingpong128x128;
}

// --- grouped products on Hopper's tensor cores ---------------------------------------------------

enum class GroupedTile { k128x128, k64x256, k32x128 };

// Like HopperTileInfo, for hopper/grouped_gemm.cuh.
struct GroupedTileInfo {
  GroupedTile tile;
  const char* name;
  int m, n, k;
  int cluster_n;  // blocks along n that load the input together
  bool swapped;
  const char* reason;
};

constexpr GroupedTileInfo kGroupedTiles[] = {
    {.tile = GroupedTile::k128x128,
     .name = "128x128x128_pingpong_cluster1x2",
     .m = 128,
     .n = 128,
     .k = 128,
     .cluster_n = 2,
     .swapped = false,
     .reason =
         "the fastest where a group has more than 64 rows; clusters along n fit groups of any "
         "rows"},
    {.tile = GroupedTile::k64x256,
     .name = "64x256x128_pingpong_cluster1x2",
     .m = 64,
     .n = 256,
     .k = 128,
     .cluster_n = 2,
     .swapped = false,
     .reason = "33 to 64 rows in a group: half as much of a tile lies beyond its end"},
    {.tile = GroupedTile::k32x128,
     .name = "32x128x256_swapped_pingpong",
     .m = 32,
     .n = 128,
     .k = 256,
     .cluster_n = 1,
     .swapped = true,
     .reason = "up to 32 rows: the weights take the 64 rows that the instruction needs, and m its "
               "free side"},
};
static_assert(is_table(kGroupedTiles));

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

// --- every architecture from sm_80 on ------------------------------------------------------------

enum class GenericTile { k128x256, k128x128, k64x128, k64x64, k32x64, k16x32 };

struct GenericTileInfo {
  GenericTile tile;
  const char* name;
  int m, n, k;
  int blocks;        // that share a multiprocessor, where its memory allows it
  double one, full;  // microseconds that one of them takes, and so many together
  const char* reason;
};

// The times are those of k = 4096 on an H100, rounded.
constexpr GenericTileInfo kGenericTiles[] = {
    {.tile = GenericTile::k128x256,
     .name = "128x256x64",
     .m = 128,
     .n = 256,
     .k = 64,
     .blocks = 1,
     .one = 45,
     .full = 45,
     .reason = "the most products for each byte read"},
    {.tile = GenericTile::k128x128,
     .name = "128x128x64",
     .m = 128,
     .n = 128,
     .k = 64,
     .blocks = 2,
     .one = 38,
     .full = 49,
     .reason = "nearly as many: where the larger tiles would leave multiprocessors idle"},
    {.tile = GenericTile::k64x128,
     .name = "64x128x128",
     .m = 64,
     .n = 128,
     .k = 128,
     .blocks = 2,
     .one = 21,
     .full = 28,
     .reason = "for 512 rows by a weight of 4096"},
    {.tile = GenericTile::k64x64,
     .name = "64x64x256",
     .m = 64,
     .n = 64,
     .k = 256,
     .blocks = 2,
     .one = 14,
     .full = 19,
     .reason = "for 256 rows; the warps divide the depth, and so do those of smaller tiles"},
    {.tile = GenericTile::k32x64,
     .name = "32x64x256",
     .m = 32,
     .n = 64,
     .k = 256,
     .blocks = 2,
     .one = 12,
     .full = 14,
     .reason = "for 128 rows, which so many blocks read that all multiprocessors work"},
    {.tile = GenericTile::k16x32,
     .name = "16x32x256",
     .m = 16,
     .n = 32,
     .k = 256,
     .blocks = 4,
     .one = 10.5,
     .full = 11.5,
     .reason = "few rows: many narrow tiles, so that all multiprocessors stream the weights"},
};

static_assert(is_table(kGenericTiles));

constexpr const GenericTileInfo& info_of(GenericTile tile) {
  return kGenericTiles[static_cast<int>(tile)];
}

inline int64_t count_tiles(const GenericTileInfo& tile, int64_t m, int64_t n) {
  return divide_up(m, tile.m) * divide_up(n, tile.n);
}

// How long the busiest multiprocessor takes, as long as the memory does not limit it.
inline double time_of(const GenericTileInfo& tile, int64_t m, int64_t n, int multiprocessors) {
  const int64_t tiles = divide_up(count_tiles(tile, m, n), multiprocessors);
  const auto rounds = static_cast<double>(tiles / tile.blocks);
  const int64_t rest = tiles % tile.blocks;
  if (rest == 0) return rounds * tile.full;
  const double share = static_cast<double>(rest - 1) / tile.blocks;
  return rounds * tile.full + tile.one + share * (tile.full - tile.one);
}

// Against the best of all tiles tried on an H100 this loses up to 4 % where m is 16 to 4096.
inline GenericTile choose_generic_tile(int64_t m, int64_t n, int multiprocessors) {
  const GenericTileInfo* best = &kGenericTiles[0];
  for (const GenericTileInfo& tile : kGenericTiles) {
    if (time_of(tile, m, n, multiprocessors) < time_of(*best, m, n, multiprocessors)) best = &tile;
  }
  return best->tile;
}

// Where a tile of the output begins.
struct TilePlace {
  int64_t m, n;
};

// Returns the place of a block's tile. Neighbouring blocks take the tiles of a band of 8 rows of
// tiles, column by column, so that they find each other's rows and columns in the L2 cache.
BARAQUANT_HD TilePlace place_of_tile(int64_t block, int64_t m, int64_t n, int tile_m, int tile_n) {
  constexpr int64_t kBand = 8;
  const int64_t rows = divide_up(m, tile_m), columns = divide_up(n, tile_n);
  const int64_t band = block / (kBand * columns), within = block % (kBand * columns);
  const int64_t left = rows - band * kBand, height = left < kBand ? left : kBand;
  return {(band * kBand + within % height) * tile_m, within / height * tile_n};
}

// --- a product of one to four rows ---------------------------------------------------------------

constexpr int kMaxVectorRows = 4;

// The vector kernel reads the weights once, without tensor cores: each of its threads multiplies
// what it reads with every row. From three rows on, a Hopper tile is faster if the weight has a
// number of rows with which the vector kernel leaves many multiprocessors idle at the end.
// benchmarks/rows_sweep.py found the bounds on an H200 (132 multiprocessors). Against the best
// kernel this choice loses 0.3 % on average with one row, 0 % with two, 0.4 % with three and 1.1 %
// with four, and at most 14 %.
inline bool prefers_vector_kernel(int64_t m, int64_t n, int64_t k, bool allows_hopper) {
  if (m <= 2 || !allows_hopper) return m <= kMaxVectorRows;
  if (m == 3) return n <= 4096 || n > 8192;
  return m == 4 && (n <= 1024 || n > 8192 || (n <= 2048 && k >= 8192));
}

// --- a product of few rows with a weight of four bits --------------------------------------------

constexpr int kPackedColumns = 32;  // of a row of the weight, which a thread loads at once

}  // namespace baraquant::int8_mm
