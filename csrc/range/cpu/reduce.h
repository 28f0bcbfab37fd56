// SPDX-License-Identifier: BSD-3-Clause
// Ranges of segments (the elements that share a scale) on the CPU. R is Magnitude<T> or MinMax<T>
// (math.h), whose keys a vector loop compares. The work is cut into units for the threads; if there
// are few segments, they are cut into slices too. The merged result is exact for any cut.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "granularity/segments.h"
#include "machine/cpu_isa.h"
#include "range/math.h"

namespace baraquant::range {

constexpr int64_t kUnit = 16384;    // the fewest elements for a task of a thread
constexpr int64_t kColumns = 1024;  // columns that are read together, row by row

// extend() adds neighbours in memory to a range; ColumnRanges has a range for each column of rows.
// NB: both use plain local variables and arrays of keys, which the compiler turns into vectors.
template <typename T>
BARAQUANT_HD void extend(Magnitude<T>& range, const T* x, int64_t count) {
  Key<T> max = range.max;
  for (int64_t i = 0; i < count; ++i) {
    const Key<T> key = magnitude_key(x[i]);
    max = key > max ? key : max;
  }
  range.max = max;
}

template <typename T>
BARAQUANT_HD void extend(MinMax<T>& range, const T* x, int64_t count) {
  Key<T> lowest = range.lowest, highest = range.highest;
  for (int64_t i = 0; i < count; ++i) {
    const Key<T> key = ordered_key(x[i]);
    lowest = key < lowest ? key : lowest;
    highest = key > highest ? key : highest;
  }
  range.lowest = lowest;
  range.highest = highest;
}

template <typename R>
class ColumnRanges;

template <typename T>
class ColumnRanges<Magnitude<T>> {
 public:
  void reset(int64_t columns) { std::fill_n(max_, columns, Magnitude<T>().max); }
  BARAQUANT_HD void extend(const T* __restrict row, int64_t columns) {
    Key<T>* __restrict const max = max_;
    for (int64_t i = 0; i < columns; ++i) {
      const Key<T> key = magnitude_key(row[i]);
      max[i] = key > max[i] ? key : max[i];
    }
  }
  Magnitude<T> at(int64_t column) const { return {max_[column]}; }

 private:
  alignas(64) Key<T> max_[kColumns];
};

template <typename T>
class ColumnRanges<MinMax<T>> {
 public:
  void reset(int64_t columns) {
    std::fill_n(lowest_, columns, MinMax<T>().lowest);
    std::fill_n(highest_, columns, MinMax<T>().highest);
  }
  BARAQUANT_HD void extend(const T* __restrict row, int64_t columns) {
    Key<T>* __restrict const lowest = lowest_;
    Key<T>* __restrict const highest = highest_;
    for (int64_t i = 0; i < columns; ++i) {
      const Key<T> key = ordered_key(row[i]);
      lowest[i] = key < lowest[i] ? key : lowest[i];
      highest[i] = key > highest[i] ? key : highest[i];
    }
  }
  MinMax<T> at(int64_t column) const { return {lowest_[column], highest_[column]}; }

 private:
  alignas(64) Key<T> lowest_[kColumns], highest_[kColumns];
};

// Adds the elements begin .. end - 1 of segment s, which lies in runs.
template <typename R, typename T>
BARAQUANT_HD void extend_by_runs(R& range, const T* x, const Segments& segments, int64_t s,
                                 int64_t begin, int64_t end) {
  if (are_rows(segments)) {
    return extend(range, x + segments.start(s) + begin, end - begin);
  }
  const int64_t run = segments.run_length.value, stride = segments.count * run;
  for (int64_t j = begin; j < end;) {
    const int64_t r = j / run, in_run = j - r * run;
    const int64_t count = std::min(run - in_run, end - j);
    extend(range, x + segments.start(s) + r * stride + in_run, count);
    j += count;
  }
}

// Returns into how many slices to cut each of `count` segments, so that all threads have work.
inline int64_t slices_for(int64_t count, int64_t length, int64_t shortest) {
  const int64_t wanted = 4 * at::get_num_threads();
  if (count >= wanted) return 1;
  return std::clamp<int64_t>((wanted + count - 1) / count, 1,
                             std::max<int64_t>(length / shortest, 1));
}

// Merges partial[slice * count + s] over the slices and calls finish(s, range) for each segment.
template <typename R, typename Finish>
void merge_slices(const std::vector<R>& partial, int64_t slices, int64_t count,
                  const Finish& finish) {
  for (int64_t s = 0; s < count; ++s) {
    R range;
    for (int64_t slice = 0; slice < slices; ++slice) range.merge(partial[slice * count + s]);
    finish(s, range);
  }
}

template <typename R, typename T, typename Finish>
void reduce_runs(const T* x, const Segments& segments, const Finish& finish) {
  const int64_t slices = slices_for(segments.count, segments.length, kUnit);
  const int64_t slice = (segments.length + slices - 1) / slices;
  std::vector<R> partial(slices > 1 ? slices * segments.count : 0);
  const int64_t grain = std::max<int64_t>(kUnit / std::max<int64_t>(slice, 1), 1);
  at::parallel_for(0, slices * segments.count, grain, [&](int64_t from, int64_t to) {
    run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
      for (int64_t unit = from; unit < to; ++unit) {
        const int64_t n = slices == 1 ? 0 : unit / segments.count;
        const int64_t s = unit - n * segments.count;
        R range;
        extend_by_runs(range, x, segments, s, n * slice,
                       std::min((n + 1) * slice, segments.length_of(s)));
        if (slices == 1) {
          finish(s, range);
        } else {
          partial[unit] = range;
        }
      }
    });
  });
  if (slices > 1) merge_slices(partial, slices, segments.count, finish);
}

template <typename R, typename T, typename Finish>
void reduce_columns(const T* x, const Segments& segments, const Finish& finish) {
  const CpuIsa isa = cpu_isa();
  const int64_t columns = segments.columns, blocks = segments.count / columns;
  const int64_t strips = (columns + kColumns - 1) / kColumns;
  const int64_t slices =
      slices_for(blocks * strips, segments.length, kUnit / std::min(columns, kColumns) + 1);
  const int64_t slice = (segments.length + slices - 1) / slices;
  std::vector<R> partial(slices > 1 ? slices * segments.count : 0);
  const int64_t grain =
      std::max<int64_t>(kUnit / std::max<int64_t>(slice * std::min(columns, kColumns), 1), 1);
  at::parallel_for(0, slices * blocks * strips, grain, [&](int64_t from, int64_t to) {
    ColumnRanges<R> ranges;
    for (int64_t unit = from; unit < to; ++unit) {
      const int64_t part = unit / strips, first = unit % strips * kColumns;
      const int64_t block = part % blocks, n = part / blocks;
      const int64_t width = std::min(kColumns, columns - first);
      const int64_t end = std::min((n + 1) * slice, segments.length_of(block));
      ranges.reset(width);
      run_on_isa(isa, [&]() __attribute__((always_inline)) {
        for (int64_t row = n * slice; row < end; ++row) {
          ranges.extend(x + (segments.start(block) + row) * columns + first, width);
        }
      });
      for (int64_t i = 0; i < width; ++i) {
        const int64_t s = block * columns + first + i;
        if (slices == 1) {
          finish(s, ranges.at(i));
        } else {
          partial[n * segments.count + s] = ranges.at(i);
        }
      }
    }
  });
  if (slices > 1) merge_slices(partial, slices, segments.count, finish);
}

// Calls finish(s, range) once for every segment s, from any thread.
template <typename R, typename T, typename Finish>
void reduce_cpu(const T* x, const Segments& segments, const Finish& finish) {
  segments.in_columns ? reduce_columns<R>(x, segments, finish)
                      : reduce_runs<R>(x, segments, finish);
}

}  // namespace baraquant::range
