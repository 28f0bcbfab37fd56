// SPDX-License-Identifier: BSD-3-Clause
// The tiles of a product on every architecture from sm_80 on, and the choice among them. Without torch
// or CUDA.
#pragma once

#include <cstdint>

#include "int8_mm/cuda/tile_table.h"
#include "machine/host_device.h"
#include "machine/integers.h"

namespace baraquant::int8_mm {

enum class GenericTile { k128x256, k128x128, k64x128, k64x64, k32x64, k16x32 };

struct GenericTileInfo {
  GenericTile tile;
  const char* name;
  int m = 0, n = 0, k = 0;
  struct {
    int m, n, k;
  } warps;           // that divide the tile and its depth
  int stages;        // tiles in the ring of buffers
  int blocks;        // that share a multiprocessor, where its memory allows it
  double one, full;  // microseconds that one of them takes, and so many together
  const char* reason;
};

// The times are those of k = 4096 on an H100, rounded.
constexpr auto kGenericTiles = table_of<GenericTileInfo>(
    {{.tile = GenericTile::k128x256,
      .name = "128x256x64",
      .warps = {2, 4, 1},
      .stages = 4,
      .blocks = 1,
      .one = 45,
      .full = 45,
      .reason = "the most products for each byte read"},
     {.tile = GenericTile::k128x128,
      .name = "128x128x64",
      .warps = {2, 2, 1},
      .stages = 4,
      .blocks = 2,
      .one = 38,
      .full = 49,
      .reason = "nearly as many: where the larger tiles would leave multiprocessors idle"},
     {.tile = GenericTile::k64x128,
      .name = "64x128x128",
      .warps = {2, 2, 1},
      .stages = 3,
      .blocks = 2,
      .one = 21,
      .full = 28,
      .reason = "for 512 rows by a weight of 4096"},
     {.tile = GenericTile::k64x64,
      .name = "64x64x256",
      .warps = {2, 2, 2},
      .stages = 3,
      .blocks = 2,
      .one = 14,
      .full = 19,
      .reason = "for 256 rows; the warps divide the depth, and so do those of smaller tiles"},
     {.tile = GenericTile::k32x64,
      .name = "32x64x256",
      .warps = {1, 2, 4},
      .stages = 4,
      .blocks = 2,
      .one = 12,
      .full = 14,
      .reason = "for 128 rows, which so many blocks read that all multiprocessors work"},
     {.tile = GenericTile::k16x32,
      .name = "16x32x256",
      .warps = {1, 1, 4},
      .stages = 4,
      .blocks = 4,
      .one = 10.5,
      .full = 11.5,
      .reason = "few rows: many narrow tiles, so that all multiprocessors stream the weights"}});

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

}  // namespace baraquant::int8_mm
