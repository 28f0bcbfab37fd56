// SPDX-License-Identifier: BSD-3-Clause
// Runs an elementwise operation (elementwise_ops.h) over a dense tensor on the CPU, in blocks of
// kBlock elements. A run is a stretch of memory with one scale or with consecutive scales
// (scale_map.h). Long runs are looped over directly; for short runs the scales are gathered into a
// buffer first, so that the loop over the elements is a straight vector loop in every case.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "elementwise/elementwise_ops.h"
#include "elementwise/qparams.h"
#include "machine/cpu_isa.h"
#include "machine/half_rows.h"

namespace baraquant::affine {

constexpr int64_t kBlock = 1024;      // elements; a multiple of 8, so that mask bytes are whole
constexpr int64_t kShortRun = 32;     // below it, gathering beats a loop for each run
constexpr int64_t kGrainBlocks = 32;  // blocks for one task of parallel_for

// Calls f(element, count, scale_index) for each run of the map in [begin, end).
template <typename F>
BARAQUANT_HD void for_each_run(const ScaleMap& map, int64_t begin, int64_t end, const F& f) {
  const int64_t run = map.run();
  const bool along_inner = map.inner.value > 1 || map.axis.value == 1;
  for (int64_t e = begin; e < end;) {
    int64_t left;
    if (map.is_single()) {
      left = end - e;
    } else if (along_inner) {
      left = run - e % run;
    } else {
      const int64_t a = e % map.axis.value;
      left = std::min(run - a % run, map.axis.value - a);
    }
    const int64_t count = std::min(left, end - e);
    f(e, count, map.index(e));
    e += count;
  }
}

template <typename Op>
struct CpuBuffers {
  using C = typename Op::C;
  alignas(64) C scale[kBlock];
  alignas(64) C zero_point[kBlock];
  alignas(64) uint8_t inside[kBlock];  // one byte per element, packed or unpacked around the loop
};

// pack_bits turns eight bytes of 0 or 1 into the bits of one byte, unpack_bits turns them back.
// Both work within a 64-bit word.
static_assert(std::endian::native == std::endian::little);

inline void pack_bits(uint8_t* bytes, int64_t count, uint8_t* bits) {
  std::fill(bytes + count, bytes + (count + 7) / 8 * 8, uint8_t(0));
  for (int64_t i = 0; i < count; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    bits[i / 8] = static_cast<uint8_t>((word * 0x0102040810204080u) >> 56);
  }
}

inline void unpack_bits(const uint8_t* bits, int64_t count, uint8_t* bytes) {
  for (int64_t i = 0; i < count; i += 8) {
    // Byte k keeps bit k; adding 0x7f carries it to the top of the byte.
    const uint64_t spread = (bits[i / 8] * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t word = ((spread + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
    std::memcpy(bytes + i, &word, 8);
  }
}

// Writes the scales and zero points of `count` neighbours in memory, which lie in one run.
template <typename C>
void gather_scales(const Qparams<C>& q, int64_t index, int64_t count, C* scale, C* zero_point) {
  if (q.map.step() == 0) {
    std::fill_n(scale, count, q.scale_at(index));
    std::fill_n(zero_point, count, q.zero_point_at(index));
    return;
  }
  std::copy_n(q.scale + index, count, scale);
  if (q.zero_point) {
    std::copy_n(q.zero_point + index, count, zero_point);
  } else {
    for (int64_t i = 0; i < count; ++i) zero_point[i] = q.zero_point_at(index + i);
  }
}

// One block's pointers, already moved to its first element.
template <typename Op>
struct CpuBlock {
  const typename Op::First* first;
  const typename Op::Second* second;  // null if Op has none
  typename Op::Result* result;
};

// result[i] = Op(first[i], second[i], grid_at(i)): the loop that is vectorised. NB: the pointers
// are local and restricted; otherwise a store of a byte could alias everything that the loop reads.
template <typename Op, typename GridAt>
BARAQUANT_HD void loop_over(const CpuBlock<Op>& block, uint8_t* inside_bytes, int64_t begin,
                            int64_t end, const GridAt& grids) {
  const GridAt grid_at = grids;
  const typename Op::First* __restrict const first = block.first;
  const typename Op::Second* __restrict const second = block.second;
  typename Op::Result* __restrict const result = block.result;
  uint8_t* __restrict const inside = inside_bytes;
  for (int64_t i = begin; i < end; ++i) {
    bool bit = false;
    if constexpr (Op::kMask == Mask::kRead) bit = inside[i] != 0;
    typename Op::Second other{};
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) other = second[i];
    result[i] = Op::apply(first[i], other, bit, grid_at(i));
    if constexpr (Op::kMask == Mask::kWrite) inside[i] = bit;
  }
}

template <typename C>
struct OneGrid {
  Grid<C> grid;
  BARAQUANT_HD Grid<C> operator()(int64_t) const { return grid; }
};

template <typename C>
struct GridEach {
  const C* scale;
  const C* zero_point;
  QuantRange<C> range;
  BARAQUANT_HD Grid<C> operator()(int64_t i) const { return {scale[i], zero_point[i], range}; }
};

// Each element has its own scale, read where it lies: element i has scale[i - first].
template <typename C>
struct GridColumns {
  const C* scale;
  const int32_t* zero_point;  // null means zero_point_number for all
  C zero_point_number;
  QuantRange<C> range;
  int64_t first;
  BARAQUANT_HD Grid<C> operator()(int64_t i) const {
    const C z = zero_point ? static_cast<C>(zero_point[i - first]) : zero_point_number;
    return {scale[i - first], z, range};
  }
};

template <typename Op>
void transform_block(CpuIsa isa, const CpuBlock<Op>& block, int64_t begin, int64_t end,
                     const Qparams<typename Op::C>& q, CpuBuffers<Op>& buffers) {
  using C = typename Op::C;
  const ScaleMap& map = q.map;
  uint8_t* const inside = buffers.inside;
  const bool columns = map.step() == 1 && !q.learned_zero_point;
  const bool gather = !map.is_single() && (map.run() < kShortRun || (map.step() == 1 && !columns));
  run_on_isa(isa, [&]() __attribute__((always_inline)) {
    for_each_run(map, begin, end,
                 [&](int64_t e, int64_t count, int64_t index) __attribute__((always_inline)) {
                   const int64_t at = e - begin;
                   if (gather) {
                     gather_scales(q, index, count, buffers.scale + at, buffers.zero_point + at);
                   } else if (columns) {
                     const int32_t* zero_point = q.zero_point ? q.zero_point + index : nullptr;
                     const GridColumns<C> grid{q.scale + index, zero_point, q.zero_point_number,
                                               q.range, at};
                     loop_over<Op>(block, inside, at, at + count, grid);
                   } else {
                     const Grid<C> grid(q.scale_at(index), q.zero_point_at(index), q.range);
                     loop_over<Op>(block, inside, at, at + count, OneGrid<C>{grid});
                   }
                 });
    if (gather) {
      const GridEach<C> grid{buffers.scale, buffers.zero_point, q.range};
      loop_over<Op>(block, inside, 0, end - begin, grid);
    }
  });
}

// A block of numbers of type T as the loop has them, of type W.
template <typename T, typename W>
class BlockNumbers {  // as float, in a buffer
 public:
  const W* read(CpuIsa isa, const T* from, int64_t count) {
    convert_row(isa, from, count, numbers_);
    return numbers_;
  }
  W* place(T*) { return numbers_; }
  void write(CpuIsa isa, int64_t count, T* to) const { convert_row(isa, numbers_, count, to); }

 private:
  alignas(64) W numbers_[kBlock];
};
template <typename T>
class BlockNumbers<T, T> {  // where they lie
 public:
  const T* read(CpuIsa, const T* from, int64_t) { return from; }
  T* place(T* to) { return to; }
  void write(CpuIsa, int64_t, T*) const {}
};

// Processes the elements begin .. end - 1. mask holds one bit per element, the lowest bit of a byte
// first; it is null if Op has no mask, otherwise `begin` must be a multiple of 8.
template <typename Op>
void transform_range(CpuIsa isa, const typename Op::First* first, const typename Op::Second* second,
                     typename Op::Result* result, uint8_t* mask, int64_t begin, int64_t end,
                     const Qparams<typename Op::C>& q) {
  using InFloat = typename Op::InFloat;
  BlockNumbers<typename Op::First, typename InFloat::First> firsts;
  BlockNumbers<typename Op::Second, typename InFloat::Second> seconds;
  BlockNumbers<typename Op::Result, typename InFloat::Result> results;
  CpuBuffers<InFloat> buffers;
  for (int64_t from = begin; from < end; from += kBlock) {
    const int64_t to = std::min(from + kBlock, end), count = to - from;
    const CpuBlock<InFloat> block{firsts.read(isa, first + from, count),
                                  second ? seconds.read(isa, second + from, count) : nullptr,
                                  results.place(result + from)};
    if constexpr (Op::kMask == Mask::kRead) unpack_bits(mask + from / 8, count, buffers.inside);
    transform_block<InFloat>(isa, block, from, to, q, buffers);
    if constexpr (Op::kMask == Mask::kWrite) pack_bits(buffers.inside, count, mask + from / 8);
    results.write(isa, count, result + from);
  }
}

template <typename Op>
void transform_cpu(const typename Op::First* first, const typename Op::Second* second,
                   typename Op::Result* result, uint8_t* mask, int64_t numel,
                   const Qparams<typename Op::C>& q) {
  const CpuIsa isa = cpu_isa();
  const int64_t blocks = (numel + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, kGrainBlocks, [&](int64_t from, int64_t to) {
    transform_range<Op>(isa, first, second, result, mask, from * kBlock,
                        std::min(to * kBlock, numel), q);
  });
}

}  // namespace baraquant::affine
