// SPDX-License-Identifier: BSD-3-Clause
// Tests on the host how kernels and tiles of the integer product on CUDA are chosen: every output
// lies in one tile, every entry of the tables is chosen somewhere, and measured shapes get the best
// tile.
#include "checks.h"

#include <cstdint>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "int8_mm/cuda/select.h"
#include "int8_mm/operands.h"

namespace {

using namespace baraquant::int8_mm;
using checks::expect;
using checks::random_bits;

// Sizes of all magnitudes.
int64_t random_size(int max_log2) {
  const int64_t limit = int64_t(1) << (random_bits() % static_cast<uint64_t>(max_log2 + 1));
  return 1 + static_cast<int64_t>(random_bits() % static_cast<uint64_t>(limit));
}

// Checks that every output belongs to the tile of exactly one block.
void check_places(int64_t m, int64_t n, const GenericTileInfo& tile) {
  std::vector<int> visits(static_cast<size_t>(m * n), 0);
  bool inside = true;
  for (int64_t block = 0; block < count_tiles(tile, m, n); ++block) {
    const TilePlace place = place_of_tile(block, m, n, tile.m, tile.n);
    inside = inside && place.m >= 0 && place.m < m && place.n >= 0 && place.n < n;
    for (int64_t i = place.m; i < m && i < place.m + tile.m; ++i) {
      for (int64_t j = place.n; j < n && j < place.n + tile.n; ++j) {
        if (i >= 0 && j >= 0) ++visits[static_cast<size_t>(i * n + j)];
      }
    }
  }
  bool once = inside;
  for (const int count : visits) once = once && count == 1;
  expect("places", once, m, n, tile.m);
}

void check_tables() {
  std::set<std::string> names = {"vector"};
  const auto check = [&](const std::string& kind, const auto& tiles) {
    int i = 0;
    for (const auto& info : tiles) {
      expect(("order of the tiles: " + kind).c_str(), static_cast<int>(info.tile) == i, i);
      ++i;
      expect("reason", std::string(info.reason).size() > 20, i);
      names.insert(kind + "_" + info.name);
    }
  };
  check("hopper", kHopperTiles);
  check("generic", kGenericTiles);
  check("grouped", kGroupedTiles);
  const std::vector<Selection> all = all_selections(true);
  expect("names", names.size() == all.size(), static_cast<int64_t>(names.size()));
  for (const Selection& s : all) expect(s.name().c_str(), names.count(s.name()) == 1);
  for (const Selection& s : all_selections(false)) expect(s.name().c_str(), !s.is_hopper());
}

void check_random_sizes() {
  std::set<std::string> chosen;
  for (int i = 0; i < 200000; ++i) {
    Situation s;
    s.m = random_size(14);
    s.n = random_size(16);
    s.k = random_size(16);
    const int chips[] = {1, 16, 78, 108, 114, 132, 148};
    s.multiprocessors = chips[random_bits() % std::size(chips)];
    s.allows_hopper = random_bits() % 2 == 0;
    if (random_bits() % 4 == 0) s.groups = random_size(8);
    const Selection selection = select(s);
    expect("allowed", allows(s, selection), s.m, s.n, s.k);
    expect("the same again", select(s) == selection, s.m, s.n, s.k);
    chosen.insert(selection.name());
  }
  for (const Selection& s : all_selections(true)) expect(s.name().c_str(), chosen.count(s.name()));
}

// Ends that do not ascend or lie outside are replaced by the nearest valid ones; no row comes
// twice.
void check_group_rows() {
  const int64_t ends[] = {3, 1, 9, -4, 2000, 7}, right[] = {3, 3, 9, 9, 12, 12};
  GroupRows rows;
  int64_t begin = 0;
  for (size_t g = 0; g < std::size(ends); ++g) {
    rows = rows.next(ends[g], 12);
    expect("rows of a group", rows.begin == begin && rows.end == right[g], rows.begin, rows.end);
    begin = rows.end;
  }
}

// Tiles that were the best, within three percent, of all tiles measured on a chip of 132
// multiprocessors, an H100.
void check_measured_shapes() {
  struct Shape {
    int64_t m, n, k;
  };
  using enum HopperTile;
  const std::pair<HopperTile, std::vector<Shape>> measured[] = {
      {kSwapped16x64, {{8, 1024, 4096}}},
      {kSwapped32x64, {{16, 4096, 4096}, {16, 8192, 8192}, {32, 1024, 4096}, {32, 4096, 14336}}},
      {kTwoSwapped32x64, {{16, 28672, 4096}, {32, 11008, 4096}}},
      {kWarps64x32, {{64, 4096, 4096}}},
      {kWarps64x64, {{64, 8192, 8192}, {96, 4096, 4096}, {128, 4096, 4096}}},
      {kTwoWarps64x64, {{64, 28672, 4096}}},
      {kCooperative64x128,
       {{128, 8192, 8192}, {192, 4096, 4096}, {256, 4096, 4096}, {256, 4096, 14336}}},
      {kCooperative128x128, {{128, 28672, 4096}, {256, 8192, 8192}, {512, 4096, 4096}}},
      {kCooperative96x128, {{192, 8192, 8192}, {320, 4096, 4096}, {384, 4096, 14336}}},
      {kCooperative192x128,
       {{320, 8192, 8192},
        {384, 8192, 4096},
        {640, 4096, 4096},
        {768, 4096, 4096},
        {768, 28672, 4096},
        {1536, 4096, 4096}}},
      {kCooperative256x128,
       {{512, 8192, 8192},
        {1024, 4096, 4096},
        {1024, 4096, 14336},
        {1536, 8192, 8192},
        {2048, 4096, 4096},
        {2048, 28672, 4096},
        {3072, 4096, 8192},
        {3072, 4096, 14336},
        {4096, 8192, 8192},
        {4096, 4096, 14336},
        {8192, 4096, 14336},
        {8192, 8192, 8192},
        {8192, 11008, 4096}}},
      {kPingpong128x128, {{512, 28672, 4096}, {8192, 4096, 1024}}},
  };
  for (const auto& [best, shapes] : measured) {
    for (const Shape& s : shapes) {
      expect("measured", choose_hopper_tile(s.m, s.n, s.k, 132) == best, s.m, s.n, s.k);
    }
  }
}

}  // namespace

int main() {
  check_tables();
  check_random_sizes();
  check_group_rows();
  check_measured_shapes();
  for (const GenericTileInfo& tile : kGenericTiles) {
    for (const int64_t m : {1, 15, 16, 17, 63, 128, 129, 1000, 1100, 2049}) {
      for (const int64_t n : {1, 31, 33, 64, 127, 300}) check_places(m, n, tile);
    }
  }
  return checks::result();
}
