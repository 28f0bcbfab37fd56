// SPDX-License-Identifier: BSD-3-Clause
// Every kernel that a CUDA product can take, by name, and which one it does take.
#pragma once

#include <string>
#include <vector>

#include "int8_mm/tiles.h"

namespace baraquant::int8_mm {

enum class Family { kVector, kHopper, kGeneric };

struct Selection {
  Family family = Family::kGeneric;
  int tile = 0;  // a HopperTile or a GenericTile

  std::string tile_name() const {
    if (family == Family::kHopper) return kHopperTiles[tile].name;
    return family == Family::kGeneric ? kGenericTiles[tile].name : "1x512";
  }
  std::string family_name() const {
    if (family == Family::kVector) return "vector";
    return family == Family::kHopper ? "hopper" : "generic";
  }
  std::string name() const {
    return family == Family::kVector ? family_name() : family_name() + "_" + tile_name();
  }
  bool operator==(const Selection&) const = default;
};

// What a call allows, beside its sizes.
struct Situation {
  int64_t m = 0, n = 0, k = 0;
  int multiprocessors = 1;
  bool allows_hopper = false;
};

inline bool allows(const Situation& s, const Selection& selection) {
  if (selection.family == Family::kVector) return s.m <= kMostVectorRows;
  return selection.family == Family::kGeneric || s.allows_hopper;
}

inline Selection select(const Situation& s) {
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
  int tile = 0;
  for ([[maybe_unused]] const auto& info : kGenericTiles) all.push_back({Family::kGeneric, tile++});
  tile = 0;
  for ([[maybe_unused]] const auto& info : kHopperTiles) {
    if (with_hopper) all.push_back({Family::kHopper, tile++});
  }
  return all;
}

}  // namespace baraquant::int8_mm
