// SPDX-License-Identifier: BSD-3-Clause
// The kernels that a CUDA product can take, by name, and the choice among them.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "int8_mm/cuda/tiles.h"

namespace baraquant::int8_mm {

enum class Family { kVector, kHopper, kGeneric, kGrouped };  // kGrouped: grouped, on Hopper

struct Selection {
  Family family = Family::kGeneric;
  int tile = 0;  // a HopperTile, a GenericTile or a GroupedTile

  bool is_hopper() const { return family == Family::kHopper || family == Family::kGrouped; }

  std::string tile_name() const {
    if (family == Family::kHopper) return kHopperTiles[tile].name;
    if (family == Family::kGrouped) return kGroupedTiles[tile].name;
    return family == Family::kGeneric ? kGenericTiles[tile].name : "1x512";
  }
  std::string family_name() const {
    if (family == Family::kVector) return "vector";
    if (family == Family::kGrouped) return "grouped";
    return family == Family::kHopper ? "hopper" : "generic";
  }
  std::string name() const {
    return family == Family::kVector ? family_name() : family_name() + "_" + tile_name();
  }
  bool operator==(const Selection&) const = default;
};

// What the choice depends on. groups is 0 if the product is not grouped.
struct Situation {
  int64_t m = 0, n = 0, k = 0;
  int multiprocessors = 1;
  bool allows_hopper = false;
  int64_t groups = 0;
};

inline bool allows(const Situation& s, const Selection& selection) {
  switch (selection.family) {
    case Family::kVector:
      return s.groups == 0 && s.m <= kMaxVectorRows;
    case Family::kHopper:
      return s.groups == 0 && s.allows_hopper;
    case Family::kGrouped:
      return s.groups > 0 && s.allows_hopper;
    case Family::kGeneric:
      break;
  }
  return true;
}

// All groups take the tile that fits their average number of rows.
inline Selection select_grouped(const Situation& s) {
  if (s.allows_hopper) {
    return {Family::kGrouped, static_cast<int>(choose_grouped_tile(s.m, s.groups))};
  }
  const int64_t rows = divide_up(s.m, s.groups);
  return {Family::kGeneric,
          static_cast<int>(choose_generic_tile(rows, s.n * s.groups, s.multiprocessors))};
}

inline Selection select(const Situation& s) {
  if (s.groups > 0) return select_grouped(s);
  if (prefers_vector_kernel(s.m, s.n, s.k, s.allows_hopper)) {
    return {Family::kVector, 0};
  }
  if (s.allows_hopper) {
    return {Family::kHopper,
            static_cast<int>(choose_hopper_tile(s.m, s.n, s.k, s.multiprocessors))};
  }
  return {Family::kGeneric, static_cast<int>(choose_generic_tile(s.m, s.n, s.multiprocessors))};
}

inline std::vector<Selection> all_selections(bool with_hopper) {
  std::vector<Selection> all{{Family::kVector, 0}};
  const auto add = [&](Family family, size_t tiles) {
    for (size_t i = 0; i < tiles; ++i) all.push_back({family, static_cast<int>(i)});
  };
  add(Family::kGeneric, std::size(kGenericTiles));
  if (!with_hopper) return all;
  add(Family::kHopper, std::size(kHopperTiles));
  add(Family::kGrouped, std::size(kGroupedTiles));
  return all;
}

}  // namespace baraquant::int8_mm
