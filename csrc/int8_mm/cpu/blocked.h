// SPDX-License-Identifier: BSD-3-Clause
// The product on the CPU, without torch: it is cut into blocks for the caches and the threads, and
// the innermost block is a tile of the machine's instruction set (tile.h). Sums are exact, so the
// blocks do not affect the bits.
//   for each block of at most kRowBlock input rows: pack it
//     for each block of columns (in parallel)
//       for each block of the depth: pack the weight; multiply tile by tile into int32 sums
//       turn the sums into outputs (rescale() in int8_mm/math.h)
// With many rows it is the blocks of rows that are divided among the threads, which then meet once.
// For few rows the weight is not packed but read once as it lies (streamed). A weight of four bits is
// expanded to int8 part by part, in a cache, or for few rows multiplied as it lies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "int4/cpu/expand.h"
#include "int8_mm/cpu/direct_rows.h"
#include "int8_mm/cpu/scratch.h"
#include "int8_mm/cpu/tile.h"
#include "int8_mm/math.h"
#include "int8_mm/operands.h"
#include "machine/cpu_isa.h"
#include "machine/float_types.h"

namespace baraquant::int8_mm {

constexpr int64_t kColumnBlock = 128;        // the most columns of one task
constexpr int64_t kDepthBlock = 2048;        // bytes of a packed row in one block of the depth
constexpr int64_t kRowBlock = 512;           // input rows that are packed together
constexpr int64_t kRowsOfThread = 256;       // from so many on, a thread takes blocks of rows
constexpr int64_t kUnit = int64_t(1) << 20;  // the fewest products of one task
constexpr int64_t kExpandedRows = 16;        // rows of four bits that are expanded to be streamed
constexpr int64_t kStreamedPacked = 8;       // input rows up to which these are streamed

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// Turns the sums of one task's block of columns into outputs.
template <typename T>
class Finish {
 public:
  using C = ComputeType<T>;

  Finish(const Operands& f, const Rescaling<C>& r, T* output, InputOffset offset)
      : n_(f.n),
        r_(r),
        output_(output),
        offset_(f.is_unsigned ? offset.of_uint8 : offset.of_int8) {}

  // For the rows m .. m + rows - 1 and the columns n .. n + columns - 1, whose sums of the weight
  // are weight_sums.
  void operator()(CpuIsa isa, int64_t m, int64_t rows, int64_t n, int64_t columns, const Sums& sums,
                  const int32_t* weight_sums) const {
    write(isa, m, rows, n, columns, sums, weight_sums, output_ + m * n_ + n, n_);
  }

  // The same, into a matrix whose rows are `stride` elements apart.
  void write(CpuIsa isa, int64_t m, int64_t rows, int64_t n, int64_t columns, const Sums& sums,
             const int32_t* weight_sums, T* output, int64_t stride) const {
    C no_bias[kColumnBlock];
    if (!r_.bias) std::fill_n(no_bias, columns, kNoBias<C>);
    const C* const bias = r_.bias ? r_.bias + n : no_bias;
    run_on_isa(isa, [&]() __attribute__((always_inline)) {
      for (int64_t i = 0; i < rows; ++i) {
        row(m + i, n, columns, sums.data + i * sums.stride, weight_sums, bias, output + i * stride);
      }
    });
  }

 private:
  BARAQUANT_HD void row(int64_t m, int64_t n, int64_t columns, const int32_t* __restrict sums,
                        const int32_t* __restrict own_sums, const C* __restrict bias,
                        T* __restrict output) const {
    const C input_scale = r_.input_scale.at(m);
    const int32_t offset = offset_, zero_point = r_.zero_point_of(m);
    const int32_t* __restrict const weight_sum = r_.weight_sum ? r_.weight_sum + n : own_sums;
    const C* __restrict const weight_scale = r_.wants_sums() ? nullptr : r_.weight_scale + n;
    for (int64_t j = 0; j < columns; ++j) {
      const int32_t products = shift(sums[j], offset, own_sums[j]);
      const int32_t acc = shift(products, zero_point, weight_sum[j]);
      if constexpr (std::is_same_v<T, int32_t>) {
        output[j] = acc;
      } else {
        output[j] = from_compute<T>(rescale(acc, weight_scale[j], input_scale, bias[j]));
      }
    }
  }

  int64_t n_;
  Rescaling<C> r_;
  T* output_;
  int32_t offset_;
};

// How the product is cut up. This depends on the sizes, the kernel and the number of threads.
struct Blocks {
  int64_t padded, stride;     // length of a packed row, in elements and bytes
  bool divides_rows;          // whether a thread takes whole blocks of rows, not of columns
  int64_t rows;               // input rows that are packed together
  int64_t row_parts;          // parts that these are cut into for the threads, if columns are few
  int64_t columns;            // columns of a task
  int64_t depth;              // elements of a panel's depth; 0 means that the weight is streamed
  int64_t panel_bytes, sums;  // scratch memory of a task
  int64_t expanded;           // and of its rows of four bits, as int8

  Blocks(const Operands& f, const CpuKernel& kernel, int threads) {
    const int64_t bytes = 4 / kernel.word;
    padded = round_up(f.k, kDepthUnit);
    // An odd number of cache lines, so that the rows of a tile do not fall into one cache set.
    stride = (padded * bytes / 64 | 1) * 64;
    const int64_t most_packed = std::min(kStreamedPacked, kernel.streamed_rows);
    const bool streamed = f.m <= (f.is_packed() ? most_packed : kernel.streamed_rows);
    divides_rows = !streamed && threads > 1 && f.m >= threads * kRowsOfThread;
    rows = divides_rows ? divide_up(f.m, round_up(divide_up(f.m, kRowBlock), threads))
                        : std::min(f.m, kRowBlock);
    if (divides_rows) threads = 1;  // for one block of rows
    columns = kColumnBlock;
    while (columns > kernel.columns && divide_up(f.n, columns) < 4 * threads) columns /= 2;
    depth = streamed ? 0 : std::min(kDepthBlock / bytes, std::max(padded, kDepthUnit));
    const int64_t tiles = divide_up(rows, static_cast<int64_t>(kernel.tiles.size()));
    row_parts = streamed ? 1 : std::clamp<int64_t>(threads / divide_up(f.n, columns), 1, tiles);
    panel_bytes = depth * kernel.columns * bytes;
    sums = divide_up(rows, row_parts) * columns;
    expanded = !f.is_packed() ? 0 : streamed ? kExpandedRows * f.k : kernel.columns * depth;
  }

  bool is_streamed() const { return depth == 0; }
  int64_t column_blocks(int64_t n) const { return divide_up(n, columns); }

  // Rows x columns, as plan() shows it.
  std::string tile(const CpuKernel& kernel) const {
    return is_streamed()
               ? std::to_string(rows) + "x4"
               : std::to_string(kernel.tiles.size()) + "x" + std::to_string(kernel.columns);
  }
  // Scratch memory of the packed input and of `threads` tasks at a time.
  int64_t scratch_bytes(int threads) const {
    const int64_t bytes_of_sums = sums * static_cast<int64_t>(sizeof(int32_t));
    const int64_t packed = rows * stride * (divides_rows ? threads : 1);
    return packed + threads * (panel_bytes + bytes_of_sums + expanded);
  }
};

// Rows of the weight as int8, `stride` elements from one to the next.
struct WeightRows {
  const int8_t* data;
  int64_t stride;
};

// The rows n .. n + count - 1 of the weight, from k on. If it has four bits, `depth` elements of each
// are expanded into scratch; k is even.
inline WeightRows weight_rows(const Operands& f, CpuIsa isa, int64_t n, int64_t count, int64_t k,
                              int64_t depth, int8_t* scratch) {
  if (!f.is_packed()) return {f.weight + n * f.k + k, f.k};
  for (int64_t i = 0; i < count; ++i) {
    int4::expand_row(isa, f.packed, n + i, k, k + depth, scratch + i * depth);
  }
  return {scratch, depth};
}

// What the t-th tile of a panel fetches of the next one, which has the rows from n on, from k on.
inline Ahead ahead_of(const Operands& f, const CpuKernel& kernel, int64_t t, int64_t n, int64_t k) {
  const int64_t row = n + t * kernel.fetched_rows();
  if (t * kernel.fetched_rows() >= kernel.columns || row >= f.n) return {};
  if (f.is_packed()) return {f.packed.row(row) + k / 2, int4::packed_size(f.k), kDepthUnit / 2};
  return {reinterpret_cast<const uint8_t*>(f.weight) + row * f.k + k, f.k, kDepthUnit};
}

// Multiplies rows of packed input with the columns n .. n + count - 1, panel by panel of the packed
// weight.
inline void multiply_panels(const Operands& f, const CpuKernel& kernel, CpuIsa isa,
                            const Blocks& blocks, const PackedRows& input, int64_t n, int64_t count,
                            uint8_t* panel, int8_t* expanded, const Sums& sums,
                            int32_t* weight_sums) {
  const int64_t max_rows = static_cast<int64_t>(kernel.tiles.size());
  const int64_t tiles = divide_up(input.count, max_rows);
  const int64_t bytes = 4 / kernel.word;
  for (int64_t k = 0; k == 0 || k < f.k; k += blocks.depth) {
    const int64_t depth = std::min(blocks.depth, f.k - k), words = divide_up(depth, kernel.word);
    for (int64_t j = 0; j < count; j += kernel.columns) {
      const int64_t columns = std::min(kernel.columns, count - j);
      const WeightRows weight = weight_rows(f, isa, n + j, columns, k, depth, expanded);
      kernel.pack_weight(weight.data, weight.stride, columns, depth, panel,
                         weight_sums ? weight_sums + j : nullptr);
      const bool is_last = j + columns == count, is_deepest = k + depth == f.k;
      const int64_t next_n = !is_last ? n + j + columns : is_deepest ? n + count : n;
      const int64_t next_k = !is_last ? k : is_deepest ? 0 : k + depth;
      for (int64_t t = 0; t < tiles; ++t) {  // tiles of nearly equal heights
        const int64_t from = t * input.count / tiles, to = (t + 1) * input.count / tiles;
        const PackedRows rows{input.data + from * input.stride + k * bytes, input.stride,
                              to - from};
        kernel.tiles[to - from - 1](rows, panel, words,
                                    {sums.data + from * sums.stride + j, sums.stride}, k > 0,
                                    ahead_of(f, kernel, t, next_n, next_k));
      }
    }
  }
}

// Multiplies rows of packed input with the columns n .. n + count - 1 of the weight as it lies.
inline void stream_columns(const Operands& f, const CpuKernel& kernel, CpuIsa isa,
                           const PackedRows& input, const DirectRows& direct, int64_t n,
                           int64_t count, int8_t* expanded, const Sums& sums,
                           int32_t* weight_sums) {
  // The sums of the weight stay 0 where nothing was added to the input and no zero point needs them.
  const InputOffset& offsets = kernel.input_offset;
  const int32_t offset = f.is_unsigned ? offsets.of_uint8 : offsets.of_int8;
  const int64_t step = !f.is_packed() ? count : direct.is_empty() ? kExpandedRows : 1;
  for (int64_t j = 0; j < count; j += step) {
    int32_t* const own_sums = weight_sums ? weight_sums + j : nullptr;
    if (!direct.is_empty() &&
        direct.multiply(f.packed, n + j, offset, sums.data + j, sums.stride, own_sums)) {
      continue;
    }
    const int64_t columns = std::min(step, count - j);
    const WeightRows weight = weight_rows(f, isa, n + j, columns, 0, f.k, expanded);
    kernel.stream(input, weight.data, columns, f.k, {sums.data + j, sums.stride}, own_sums);
  }
}

// Runs the tasks begin .. end - 1 of the block of rows that starts at row m. A task multiplies a
// part of its rows with a block of columns.
template <typename Write>
void run_tasks(const Operands& f, const CpuKernel& kernel, CpuIsa isa, const Blocks& blocks,
               const PackedRows& block, const DirectRows& direct, int64_t m, int64_t begin,
               int64_t end, const Write& finish) {
  const Scratch<int32_t> memory(blocks.sums);
  const Scratch<uint8_t> panel(blocks.panel_bytes);
  const Scratch<int8_t> expanded(blocks.expanded);
  const Sums sums{memory.data(), blocks.columns};
  int32_t weight_sums[kColumnBlock];
  int32_t* const wanted_sums =
      f.wants_weight_sums || kernel.input_offset.needs_sums() ? weight_sums : nullptr;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t part = task % blocks.row_parts, n = task / blocks.row_parts * blocks.columns;
    const int64_t from = part * block.count / blocks.row_parts;
    const int64_t to = (part + 1) * block.count / blocks.row_parts;
    const int64_t count = std::min(blocks.columns, f.n - n);
    const PackedRows input{block.data + from * block.stride, block.stride, to - from};
    std::fill_n(weight_sums, blocks.columns, 0);
    if (blocks.is_streamed()) {
      stream_columns(f, kernel, isa, input, direct, n, count, expanded.data(), sums, wanted_sums);
    } else {
      multiply_panels(f, kernel, isa, blocks, input, n, count, panel.data(), expanded.data(), sums,
                      wanted_sums);
    }
    finish(isa, m + from, input.count, n, count, sums, weight_sums);
  }
}

// The rows of an input that lie one after the other.
struct AdjacentRows {
  const Operands& f;

  void pack(const CpuKernel& kernel, int64_t m, int64_t padded, uint8_t* packed) const {
    kernel.pack_input(static_cast<const uint8_t*>(f.input) + m * f.k, f.is_unsigned, f.k, padded,
                      packed);
  }
};

// Multiplies the rows that rows.pack() makes, and gives the sums to finish(), as run_tasks() calls
// it. parallel(count, grain, task) must call task(begin, end) on threads until 0 .. count - 1 are
// done, for `grain` or more of them at a time.
template <typename Rows, typename Write, typename Parallel>
void multiply_rows(const Operands& f, const Rows& rows, const Write& finish, CpuIsa isa,
                   const CpuKernel& kernel, const Blocks& blocks, const Parallel& parallel) {
  const DirectRows direct(f, isa, blocks.is_streamed());
  const int64_t tasks = blocks.column_blocks(f.n) * blocks.row_parts;
  // A block of rows, whose parts `inside` divides.
  const auto multiply_block = [&](int64_t m, uint8_t* packed, const auto& inside) {
    const PackedRows block{packed, blocks.stride, std::min(blocks.rows, f.m - m)};
    inside(block.count, kUnit / (16 * (f.k + 1)) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        rows.pack(kernel, m + i, blocks.padded, packed + i * blocks.stride);
      }
    });
    // Packing an element of the weight costs about as much as 16 products.
    const int64_t cost = (block.count + 16) * blocks.columns * (f.k + 1) / blocks.row_parts;
    inside(tasks, kUnit / cost + 1, [&](int64_t begin, int64_t end) {
      run_tasks(f, kernel, isa, blocks, block, direct, m, begin, end, finish);
    });
  };
  const auto multiply_blocks = [&](int64_t begin, int64_t end, const auto& inside) {
    const Scratch<uint8_t> packed(blocks.rows * blocks.stride);
    for (int64_t b = begin; b < end; ++b) multiply_block(b * blocks.rows, packed.data(), inside);
  };
  const int64_t count = divide_up(f.m, blocks.rows);
  if (!blocks.divides_rows) return multiply_blocks(0, count, parallel);
  const auto alone = [](int64_t size, int64_t, const auto& task) { task(0, size); };
  parallel(count, 1, [&](int64_t begin, int64_t end) { multiply_blocks(begin, end, alone); });
}

template <typename T, typename Parallel>
void product(const Operands& f, const Rescaling<ComputeType<T>>& r, T* output, CpuIsa isa,
             const CpuKernel& kernel, const Blocks& blocks, const Parallel& parallel) {
  const Finish<T> finish(f, r, output, kernel.input_offset);
  multiply_rows(f, AdjacentRows{f}, finish, isa, kernel, blocks, parallel);
}

// Turns sums [f.m, f.n] into outputs, as product() does at its end.
template <typename T, typename Parallel>
void rescale_sums(const int32_t* sums, const Operands& f, const Rescaling<ComputeType<T>>& r,
                  T* output, CpuIsa isa, const Parallel& parallel) {
  constexpr int64_t kRows = 16;
  constexpr int32_t kNoOffset[kColumnBlock] = {};
  const Finish<T> finish(f, r, output, InputOffset{});
  const int64_t blocks = divide_up(f.n, kColumnBlock), parts = divide_up(f.m, kRows);
  parallel(blocks * parts, kUnit / (16 * kRows * kColumnBlock), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task % blocks * kColumnBlock, m = task / blocks * kRows;
      // NB: Finish only reads the sums.
      const Sums part{const_cast<int32_t*>(sums) + m * f.n + n, f.n};
      finish(isa, m, std::min(kRows, f.m - m), n, std::min(kColumnBlock, f.n - n), part, kNoOffset);
    }
  });
}

// sums[n] = sum over k of weight[n, k].
template <typename Parallel>
void sum_rows(const int8_t* weight, int64_t n, int64_t k, int32_t* sums, CpuIsa isa,
              const Parallel& parallel) {
  parallel(n, kUnit / (16 * (k + 1)) + 1, [&](int64_t begin, int64_t end) {
    run_on_isa(isa, [&]() __attribute__((always_inline)) {
      for (int64_t i = begin; i < end; ++i) {
        const int8_t* __restrict const row = weight + i * k;
        int32_t sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += row[j];
        sums[i] = sum;
      }
    });
  });
}

}  // namespace baraquant::int8_mm
