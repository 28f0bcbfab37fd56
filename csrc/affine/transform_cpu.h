// SPDX-License-Identifier: BSD-3-Clause
// Runs a direction (directions.h) over a dense tensor on the CPU. Work goes in blocks of kBlock
// elements. Long runs of one scale are looped over directly; short runs have their scales gathered
// into a buffer first, so that the loop over the elements is a straight vector loop in every case.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "affine/directions.h"
#include "affine/qparams.h"
#include "cpu_isa.h"

namespace baraquant::affine {

constexpr int64_t kBlock = 1024;      // elements; a multiple of 8, so that mask bytes are whole
constexpr int64_t kShortRun = 32;     // below it, gathering beats a loop for each run
constexpr int64_t kGrainBlocks = 32;  // blocks for one task of parallel_for

// Walks over the runs in [begin, end) of a map: f(element, count, scale_index).
template <typename F>
void for_each_run(const ScaleMap& map, int64_t begin, int64_t end, const F& f) {
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

inline void pack_bits(const uint8_t* bytes, int64_t count, uint8_t* bits) {
  for (int64_t i = 0; i < count; i += 8) {
    uint8_t packed = 0;
    for (int64_t k = 0; k < std::min<int64_t>(8, count - i); ++k) packed |= bytes[i + k] << k;
    bits[i / 8] = packed;
  }
}

inline void unpack_bits(const uint8_t* bits, int64_t count, uint8_t* bytes) {
  for (int64_t i = 0; i < count; ++i) bytes[i] = (bits[i / 8] >> (i % 8)) & 1;
}

// One block's pointers, already moved to its first element.
template <typename Op>
struct CpuBlock {
  const typename Op::First* first;
  const typename Op::Second* second;  // null where Op has none
  typename Op::Result* result;
};

// result[i] = Op(first[i], second[i], scale(i), zero_point(i)): the loop that is vectorised.
template <typename Op, typename ScaleAt>
BARAQUANT_HD void loop_over(const CpuBlock<Op>& block, uint8_t* inside, int64_t begin, int64_t end,
                            const ScaleAt& scale_at, const QuantRange<typename Op::C> range) {
  for (int64_t i = begin; i < end; ++i) {
    bool bit = false;
    if constexpr (Op::kMask == Mask::kRead) bit = inside[i] != 0;
    typename Op::Second second{};
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) second = block.second[i];
    block.result[i] =
        Op::apply(block.first[i], second, bit, scale_at.scale(i), scale_at.zero_point(i), range);
    if constexpr (Op::kMask == Mask::kWrite) inside[i] = bit;
  }
}

template <typename C>
struct OneScale {
  C s, z;
  BARAQUANT_HD C scale(int64_t) const { return s; }
  BARAQUANT_HD C zero_point(int64_t) const { return z; }
};

template <typename C>
struct ScaleEach {
  const C* s;
  const C* z;
  BARAQUANT_HD C scale(int64_t i) const { return s[i]; }
  BARAQUANT_HD C zero_point(int64_t i) const { return z[i]; }
};

template <typename Op>
void transform_block(CpuIsa isa, const CpuBlock<Op>& block, int64_t begin, int64_t end,
                     const Qparams<typename Op::C>& q, CpuBuffers<Op>& buffers) {
  using C = typename Op::C;
  const ScaleMap& map = q.map;
  const QuantRange<C> range = q.range;
  uint8_t* const inside = buffers.inside;
  const bool gather = !map.is_single() && (map.step() == 1 || map.run() < kShortRun);
  for_each_run(map, begin, end, [&](int64_t e, int64_t count, int64_t index) {
    const int64_t at = e - begin;
    if (gather) {
      const int64_t step = map.step();
      for (int64_t i = 0; i < count; ++i) {
        buffers.scale[at + i] = q.scale_at(index + i * step);
        buffers.zero_point[at + i] = q.zero_point_at(index + i * step);
      }
      return;
    }
    const OneScale<C> one{q.scale_at(index), q.zero_point_at(index)};
    run_on_isa(isa, [&]() __attribute__((always_inline)) {
      loop_over<Op>(block, inside, at, at + count, one, range);
    });
  });
  if (gather) {
    const ScaleEach<C> each{buffers.scale, buffers.zero_point};
    run_on_isa(isa, [&]() __attribute__((always_inline)) {
      loop_over<Op>(block, inside, 0, end - begin, each, range);
    });
  }
}

// mask: one bit per element, the lowest bit of a byte first; null where Op has none.
template <typename Op>
void transform_cpu(const typename Op::First* first, const typename Op::Second* second,
                   typename Op::Result* result, uint8_t* mask, int64_t numel,
                   const Qparams<typename Op::C>& q) {
  const CpuIsa isa = cpu_isa();
  const int64_t blocks = (numel + kBlock - 1) / kBlock;
  at::parallel_for(0, blocks, kGrainBlocks, [&](int64_t from, int64_t to) {
    CpuBuffers<Op> buffers;
    for (int64_t b = from; b < to; ++b) {
      const int64_t begin = b * kBlock;
      const int64_t end = std::min(begin + kBlock, numel);
      const CpuBlock<Op> block{first + begin, second ? second + begin : nullptr, result + begin};
      if constexpr (Op::kMask == Mask::kRead) {
        unpack_bits(mask + begin / 8, end - begin, buffers.inside);
      }
      transform_block<Op>(isa, block, begin, end, q, buffers);
      if constexpr (Op::kMask == Mask::kWrite) {
        pack_bits(buffers.inside, end - begin, mask + begin / 8);
      }
    }
  });
}

}  // namespace baraquant::affine
