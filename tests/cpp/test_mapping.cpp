// SPDX-License-Identifier: BSD-3-Clause
// Tests on the host, thread by thread, which thread of a CUDA kernel takes which elements: every
// element is taken once and every segment has one leading thread, for all kinds of maps, odd sizes
// and chips. Tests also the keys of packed words against those of single elements.
#include "checks.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#include "granularity/segments.h"
#include "range/mapping.h"
#include "range/order_keys.h"

namespace {

using namespace baraquant;
using namespace baraquant::range;
using checks::expect;
using checks::random_bits;

// Counts how often each element was visited.
struct Visits {
  std::vector<int> count;
  bool outside = false;

  explicit Visits(int64_t size) : count(static_cast<size_t>(size)) {}
  void add(int64_t i) {
    if (i < 0 || i >= static_cast<int64_t>(count.size())) {
      outside = true;
    } else {
      ++count[static_cast<size_t>(i)];
    }
  }
  bool once() const {
    for (const int n : count) {
      if (n != 1) return false;
    }
    return !outside;
  }
};

// The elements of an input; each must be visited for the segment that the map gives it.
struct Input {
  const ScaleMap& map;
  Visits elements;
  bool own = true;  // every element was visited for its own segment

  explicit Input(const ScaleMap& m) : map(m), elements(m.numel()) {}
  void visit(int64_t at, int64_t segment) {
    elements.add(at);
    if (at >= 0 && at < map.numel() && map.index(at) != segment) own = false;
  }
  void check(const char* what) const {
    expect(what, elements.once() && own, map.outer, map.axis.value, map.inner.value);
  }
};

void check_row_mapping(const RowMapping& m, const RowLimits& limits, const Chip& chip) {
  expect("threads", m.threads % kWarp == 0 && m.threads > 0 && m.threads <= 1024, m.threads);
  expect("packs", (m.packs == 1 || m.packs == 2 || m.packs == 4) && m.packs <= limits.packs);
  expect("cluster", m.blocks_log2 == 0 || (m.is_block && chip.clusters), m.blocks_log2);
  expect("team", m.is_block ? m.threads > kWarp : (1 << m.team_log2) >= limits.min_team);
  expect("blocks", m.blocks_log2 <= kMaxBlocksLog2, m.blocks_log2);
}

void check_rows(const ScaleMap& map, int pack, const RowLimits& limits, const Chip& chip) {
  const Segments s = make_segments(map);
  if (!are_rows(s)) return;
  const RowMapping m = map_rows(s.count, s.length, pack, limits, chip);
  if (m.packs == 0) {
    const int64_t most = (int64_t(limits.packs) * 1024 * pack) << (chip.clusters ? 3 : 0);
    return expect("too long", s.length > most, s.length, most);
  }
  check_row_mapping(m, limits, chip);
  const bool whole = s.length % pack == 0 && start_at_multiples(s, pack);
  const bool bytes = start_at_multiples(s, 8);
  Input packs(map), elements(map);
  Visits leads(s.count), mask((map.numel() + 7) / 8);
  for (int64_t block = 0; block < m.grid(s.count); ++block) {
    for (int thread = 0; thread < m.threads; ++thread) {
      const RowPlace place = place_in_row(s, m, block, thread);
      if (place.leads()) leads.add(place.row);
      for (int p = 0; p < m.packs && whole; ++p) {
        if (!place.has(p, pack)) continue;
        const int64_t begin = place.start + place.offset(p, pack);
        expect("aligned", begin % pack == 0, begin);
        for (int i = 0; i < pack; ++i) packs.visit(begin + i, place.row);
      }
      for (int i = place.lane; i < place.length; i += place.team) {
        elements.visit(place.start + i, place.row);
      }
      for (int at = place.lane * 8; at < place.length && bytes; at += place.team * 8) {
        expect("byte", (place.start + at) % 8 == 0, place.start, at);
        mask.add((place.start + at) / 8);
      }
    }
  }
  if (whole) packs.check("packs of rows");
  elements.check("elements of rows");
  expect("leads of rows", leads.once(), s.count, s.length, pack);
  if (bytes) expect("bytes of a mask", mask.once(), s.count, s.length, pack);
}

void check_runs(const ScaleMap& map, int pack, const Chip& chip) {
  const Segments s = make_segments(map);
  if (s.in_columns) return;
  const bool is_row = s.count == 1 || are_rows(s);
  if (!is_row && s.run_length.value % pack != 0) pack = 1;
  const RunMapping m = map_runs(s, pack, chip);
  expect("team", m.team_log2 <= kWarpLog2 || m.team_log2 == kReduceThreadsLog2, m.team_log2);
  expect("one slice", m.slices.value == 1 || m.is_block());
  Input input(map);
  Visits leads(s.count * m.slices.value);
  for (int64_t block = 0; block < m.grid(s.count); ++block) {
    for (int thread = 0; thread < kReduceThreads; ++thread) {
      const RunPlace place = place_in_runs(s, m, pack, block, thread);
      if (place.leads) leads.add(place.slice * s.count + place.segment);
      for (int64_t j = place.begin; j < place.end; j += place.step) {
        const int64_t at = s.at(place.segment, j);
        for (int i = 0; i < pack && j + i < place.end; ++i) input.visit(at + i, place.segment);
      }
    }
  }
  input.check("runs");
  expect("leads of runs", leads.once(), s.count, s.length, pack);
}

void check_columns(const ScaleMap& map, int pack, const Chip& chip) {
  const Segments s = make_segments(map);
  if (!s.in_columns) return;
  const ColumnMapping m = map_columns(s, pack, chip);
  expect("team", m.is_block() ? m.team_log2 == kReduceThreadsLog2 : m.team_log2 <= kWarpLog2);
  expect("one slice", m.slices.value == 1 || m.is_block());
  expect("lanes", m.lanes_log2 <= m.team_log2 && m.lanes_log2 <= kWarpLog2, m.lanes_log2);
  Input input(map);
  Visits leads(s.count * m.slices.value);
  const auto lead = [&](const ColumnPlace& place, int64_t column) {
    if (place.block < m.blocks && column < s.columns) {
      leads.add(place.slice * s.count + place.block * s.columns + column);
    }
  };
  for (int64_t block = 0; block < m.grid(); ++block) {
    for (int thread = 0; thread < kReduceThreads; ++thread) {
      const ColumnPlace place = place_in_columns(s, m, pack, block, thread);
      for (int64_t row = place.first; row < place.end; row += place.step) {
        for (int64_t c = place.column; c < place.column + pack && c < s.columns; ++c) {
          const int64_t segment = place.block * s.columns + c;
          input.visit((s.start(place.block) + row) * s.columns + c, segment);
        }
      }
      if (m.is_block()) {
        if (thread < pack << m.lanes_log2) lead(place, place.tile + thread);
        // A thread merges with those whose numbers differ only in the bits from lanes_log2 on.
        expect("lane", place.lane == thread % kWarp % (1 << m.lanes_log2), thread);
      } else if (place.row_lane == 0) {
        for (int i = 0; i < pack; ++i) lead(place, place.column + i);
      }
    }
  }
  input.check("columns");
  expect("leads of columns", leads.once(), s.count, s.length, s.columns);
}

void check_map(const ScaleMap& map) {
  const Chip chips[] = {{132, true}, {132, false}, {1, true}};
  for (const Chip& chip : chips) {
    for (const int pack : {4, 8, 16}) {
      for (const bool copies : {false, true}) {
        check_rows(map, pack, {pack == 4 ? 2 : 4, 1, copies}, chip);
      }
      if (pack == 4) check_rows(map, pack, {2, 2, true}, chip);
      check_runs(map, pack, chip);
      check_columns(map, pack / 2, chip);
    }
    check_runs(map, 1, chip);
  }
}

void check_maps() {
  for (const int64_t n : {1, 3, 8, 16, 200, 1024, 5000, 16384, 65536, 262144, 530000}) {
    check_map(make_per_tensor_map(n));
    for (const int64_t rows : {1, 2, 5}) {
      if (n <= 70000) check_map(make_per_group_map(rows, n, 1, n));  // per token
    }
  }
  for (const int64_t length : {1, 2, 7, 8, 24, 64, 128, 130, 512, 1040, 2048, 4096}) {
    for (const int64_t rows : {33, 700}) check_map(make_per_group_map(rows, length, 1, length));
  }
  for (const int64_t outer : {1, 2, 9, 300}) {
    for (const int64_t axis : {1, 2, 5, 40, 257}) {
      for (const int64_t inner : {1, 2, 3, 16, 49, 64, 300}) {
        if (outer * axis * inner > 200000) continue;
        check_map(make_per_channel_map(outer, axis, inner));
        for (const int64_t size : {1, 2, 3, 16, 32, 100}) {
          check_map(make_per_group_map(outer, axis, inner, size));
        }
      }
    }
  }
  check_map(make_per_channel_map(20000, 3, 1));
  check_map(make_per_channel_map(3000, 40, 1));
  check_map(make_per_channel_map(2, 3, 150000));
  check_map(make_per_group_map(1, 90000, 5, 50000));
}

template <typename T>
T random_value() {
  const T specials[] = {bit_cast<T>(Key<T>(0)), bit_cast<T>(kMinKey<T>), bit_cast<T>(kMaxKey<T>),
                        bit_cast<T>(Key<T>(-1))};
  const uint64_t bits = random_bits();
  return bits % 8 == 0 ? specials[bits / 8 % 4] : bit_cast<T>(static_cast<Key<T>>(bits >> 3));
}

template <typename T>
void check_words() {
  constexpr int kSize = 32 / sizeof(T);
  for (int trial = 0; trial < 20000; ++trial) {
    Words<T, kSize> words;
    Words<T, 1> single;
    const T fill = random_value<T>();
    words.fill(fill);
    single.fill(fill);
    WordExtremes<T> two = WordExtremes<T>::of_nothing(), one = WordExtremes<T>::of_nothing();
    WordExtremes<T> of_single = WordExtremes<T>::of_nothing();
    MinMax<T> range;
    Magnitude<T> magnitude;
    for (int i = 0; i < kSize; ++i) {
      const T x = i == 0 ? fill : random_value<T>();
      words.set(i, x);
      range.add(x);
      magnitude.add(x);
      expect("get", bit_cast<Key<T>>(words.get(i)) == bit_cast<Key<T>>(x));
    }
    for (int w = 0; w < words.kCount; ++w) {
      two.add(words.at[w], true);
      one.add(words.at[w], false);
    }
    of_single.add(single.at[0], true);
    expect("lowest", two.all(true).lowest == range.lowest);
    expect("highest", two.all(true).highest == range.highest);
    expect("magnitude", one.all(false).highest == magnitude.max);
    for (int i = 0; i < kPerWord<T>; ++i) {
      expect("element", of_single.element(i).lowest == ordered_key(fill));
      expect("element", of_single.element(i).highest == ordered_key(fill));
    }
    for (const bool symmetric : {true, false}) {
      const Rule<ComputeType<T>> rule(-128, 127, symmetric);
      const auto expected = symmetric ? choose(magnitude, rule) : choose(range, rule);
      const auto got = choose(symmetric ? one.all(false) : two.all(true), rule);
      const bool both_nan = got.scale != got.scale && expected.scale != expected.scale;
      expect("scale", got.scale == expected.scale || both_nan);
      expect("zero point", got.zero_point == expected.zero_point);
    }
  }
  const Extremes<T> nothing = WordExtremes<T>::of_nothing().all(true);
  expect("nothing", nothing.lowest == kMaxKey<T> && nothing.highest == kMinKey<T>);
}

}  // namespace

int main() {
  check_maps();
  check_words<float>();
  check_words<double>();
  check_words<Float16>();
  check_words<BFloat16>();
  return checks::result();
}
