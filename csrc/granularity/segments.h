// SPDX-License-Identifier: BSD-3-Clause
// Segments: the elements that share a scale, over which sums and ranges are taken. Without torch.
//
// Note [Order of the sums]
// Every product is computed in C, widened to double and added in an order that depends on the shape
// alone, so that every execution and every device gives the same bits. The elements of a segment,
// numbered j = 0, 1, ... in memory order, are cut into slices. Within a slice, lane l of `lanes`
// adds j = l, l + lanes, l + 2 lanes, ... in turn; then neighbouring lanes are added in pairs until
// one is left. The sums of several slices are added up in the same way.
#pragma once

#include <cstdint>

#include "granularity/scale_map.h"
#include "machine/host_device.h"

namespace baraquant {

constexpr int kPackLanes = 8;  // lanes that one CUDA thread keeps
constexpr int kMaxTeam = 256;  // CUDA threads of the largest team, which share a long segment
constexpr int kMaxLanes = kPackLanes * kMaxTeam;
constexpr int64_t kRunSlice = 16384;  // elements in a slice if segments lie in runs
constexpr int64_t kRowSlice = 256;    // rows in a slice if segments lie in columns
constexpr int kRowLanes = 8;

// How many threads share a segment of that length. A thread takes up to 32 elements until the team
// is a warp, and then up to 128 (starting a thread costs as much as some ten elements). A longer
// segment gets a whole block.
BARAQUANT_HD int team_size(int64_t length) {
  if (length > 32 * 128) return kMaxTeam;
  int team = length > 16 ? 2 : 1;
  while (team < 32 && team * 32 < length) team *= 2;
  return team;
}

// Adds neighbours in pairs until one sum is left, which it returns; `lanes` is a power of two.
template <int lanes>
BARAQUANT_HD double sum_pairs(const double* sums) {
  if constexpr (lanes == 1) {
    return sums[0];
  } else {
    return sum_pairs<lanes / 2>(sums) + sum_pairs<lanes / 2>(sums + lanes / 2);
  }
}

// The same for a number of lanes that may be known at run time alone. Overwrites `sums`.
BARAQUANT_HD double sum_pairs(double* sums, int lanes) {
  for (; lanes >= 16; lanes /= 16) {
    for (int i = 0; i < lanes / 16; ++i) sums[i] = sum_pairs<16>(sums + 16 * i);
  }
  for (; lanes >= 2; lanes /= 2) {
    for (int i = 0; i < lanes / 2; ++i) sums[i] = sum_pairs<2>(sums + 2 * i);
  }
  return sums[0];
}

// Where the elements of each segment lie. If segments lie in runs of neighbours, element j of
// segment s is element i = j % run_length of the segment's run r = j / run_length, at
//   (r * count + s) * run_length + i,
// or, if the last group of an axis is shorter, a segment is one run, and the element is at
//   (s / groups) * axis + (s % groups) * block + j.
// If segments lie in columns, row j of column i of block b is at
//   (b / groups * axis + b % groups * block + j) * columns + i
// and belongs to segment b * columns + i.
struct Segments {
  bool in_columns = false;
  int64_t count = 1;    // segments
  int64_t length = 0;   // elements of a segment (the last one of an axis may be shorter)
  int64_t slices = 1;   // slices of one segment
  int64_t columns = 1;  // neighbours in memory that belong to different segments
  int64_t axis = 0, block = 0;
  Divisor run_length, groups;
  bool last_is_shorter = false;

  // start: the first element of segment s; length_of: how many elements it has. If segments lie in
  // columns, s is a block instead, and both count rows.
  BARAQUANT_HD int64_t start(int64_t s) const {
    if (in_columns || last_is_shorter) {
      const int64_t o = groups.divide(s);
      return o * axis + (s - o * groups.value) * block;
    }
    return s * run_length.value;
  }
  BARAQUANT_HD int64_t length_of(int64_t s) const {
    if (!last_is_shorter) return length;
    const int64_t left = axis - (s - groups.divide(s) * groups.value) * block;
    return left < block ? left : block;
  }
  // start and length_of together, with one division.
  BARAQUANT_HD void span(int64_t s, int64_t& start, int64_t& length_of_s) const {
    start = s * run_length.value;
    length_of_s = length;
    if (!in_columns && !last_is_shorter) return;
    const int64_t o = groups.divide(s), left = axis - (s - o * groups.value) * block;
    start = (o + 1) * axis - left;
    length_of_s = left < block ? left : block;
  }
  // The number of the run, within its segment, in which element j lies.
  BARAQUANT_HD int64_t run_of(int64_t j) const {
    return j < run_length.value ? 0 : run_length.divide(j);
  }
  // Where element j of segment s lies. Not for columns.
  BARAQUANT_HD int64_t at(int64_t s, int64_t j) const {
    return start(s) + j + run_of(j) * (count - 1) * run_length.value;
  }
};

inline Segments make_segments(const ScaleMap& map) {
  Segments s;
  const int64_t outer = map.outer, axis = map.axis.value, inner = map.inner.value;
  s.groups = Divisor(map.groups());
  s.block = map.block.value;
  s.axis = axis;
  if (map.is_single()) {
    s.length = map.numel();
    s.run_length = map.inner;
  } else if (map.step() == 1) {
    s.in_columns = true;
    s.columns = inner;
    if (map.stride_outer == 0) {  // per channel: the rows are one block
      s.axis = s.block = outer * axis;
      s.groups = Divisor(1);
    }
    s.last_is_shorter = s.axis % s.block != 0;
    s.length = s.block;
    s.count = outer * axis / s.axis * s.groups.value * inner;
  } else if (inner > 1 || axis == 1) {  // runs along inner
    const bool repeats = map.stride_outer == 0;
    s.count = repeats ? axis : outer;
    s.run_length = map.inner;
    s.length = repeats ? outer * inner : inner;
  } else {  // blocks along the axis, the last one shorter
    s.last_is_shorter = true;
    s.count = outer * s.groups.value;
    s.run_length = map.block;
    s.length = s.block;
  }
  const int64_t slice = s.in_columns ? kRowSlice : kRunSlice;
  s.slices = (s.length + slice - 1) / slice;
  return s;
}

// Whether every segment is one run of neighbours in memory.
inline bool are_rows(const Segments& s) {
  return !s.in_columns && (s.last_is_shorter || s.run_length.value == s.length);
}

// Whether every segment starts at a multiple of `step` elements.
inline bool start_at_multiples(const Segments& s, int64_t step) {
  if (s.last_is_shorter) return s.axis % step == 0 && s.block % step == 0;
  return s.count == 1 || s.length % step == 0;
}

}  // namespace baraquant
