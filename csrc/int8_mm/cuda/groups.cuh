// SPDX-License-Identifier: BSD-3-Clause
// Which rows belong to which group of a grouped product. The ends of the groups lie on the device
// and are read only there; a warp looks at 32 groups at a time.
#pragma once

#include "int8_mm/cuda/tiles.h"
#include "int8_mm/operands.h"

namespace baraquant::int8_mm {

constexpr uint32_t kAllLanes = 0xffffffff;

// The rows of 32 groups, one for each lane of a warp.
struct LaneGroups {
  GroupRows rows;  // the rows of this lane's group
  int64_t behind;  // the first row after all 32 groups

  // Lane 0 has group `first`, whose rows begin at `begin`; lanes after the last group have no rows.
  // All lanes of a warp must call it.
  __device__ __forceinline__ LaneGroups(const Operands& f, int64_t first, int64_t begin) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int64_t max_end = first + lane < f.groups ? f.ends[first + lane] : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {  // maximum of the ends up to this group
      const int64_t other = __shfl_up_sync(kAllLanes, max_end, distance);
      if (lane >= distance && other > max_end) max_end = other;
    }
    const int64_t before = __shfl_up_sync(kAllLanes, max_end, 1);
    const GroupRows first_rows{begin, begin};
    rows = first_rows;
    if (lane > 0) rows = first_rows.next(before, f.m);
    rows = rows.next(max_end, f.m);
    behind = __shfl_sync(kAllLanes, rows.end, 31);
  }
};

// A tile's group and its rows. group is -1 if there are fewer tiles.
struct GroupTile {
  int64_t group = -1, begin = 0, end = 0;
};

// Returns the tile number `index`, if the tiles of all groups are numbered consecutively and each
// group has as many tiles of `height` rows as it needs. The rows after the last group count as one
// more group, number f.groups. All lanes of a warp must call it, and get the same result.
__device__ __forceinline__ GroupTile find_group_tile(const Operands& f, int height, int64_t index) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t begin = 0;
  for (int64_t first = 0; first <= f.groups; first += 32) {
    LaneGroups lanes(f, first, begin);
    if (first + lane == f.groups) lanes.rows.end = f.m;
    const int64_t tiles = divide_up(lanes.rows.end - lanes.rows.begin, height);
    int64_t sum = tiles;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    const uint32_t later = __ballot_sync(kAllLanes, sum > index);
    if (later != 0) {
      const int found = __ffs(static_cast<int>(later)) - 1;
      const int64_t within = index - __shfl_sync(kAllLanes, sum - tiles, found);
      return {first + found, __shfl_sync(kAllLanes, lanes.rows.begin, found) + within * height,
              __shfl_sync(kAllLanes, lanes.rows.end, found)};
    }
    index -= __shfl_sync(kAllLanes, sum, 31);
    begin = lanes.behind;
  }
  return {};
}

}  // namespace baraquant::int8_mm
