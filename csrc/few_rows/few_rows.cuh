// SPDX-License-Identifier: BSD-3-Clause
// The product of few input rows with a weight of integers, which is read once and decoded in
// registers: a warp takes 16 rows of the weight, and multiplies by mma.sync with the weight as the
// first matrix. The warps of a block divide the depth of the same rows among them.
//
// The places of an instruction's depth may be any columns, the same in both matrices. Thus a thread
// multiplies neighbouring bytes of a row of the weight, and reads the same columns of the input. The
// weight comes through shared memory: where a thread's bytes are several words, the threads of a row
// copy one another's.
//
// What is multiplied is a class like this, whose objects are the kernel's argument:
//   struct Product {
//     static constexpr int kColumns;      // that a thread multiplies in a step
//     static constexpr int kWeightWords;  // 16-byte words that hold so many columns of the weight
//     static constexpr int kInputWords;   // and of the input
//     static constexpr bool kMayNotFit;   // whether there are groups that need the slow arithmetic
//     using Sum;                          // int or float
//     using Order;                        // EvenThenOdd or AsInMemory
//     int64_t m, n, k;
//     bool input_is_newest;               // what ran last in the stream wrote the input, not the weight
//     const uint8_t* input_row(int64_t m) const;  // on the host too
//     struct Group;                       // the numbers of a group of columns
//     static bool fits(const Group& group);
//     // The column whose group a thread needs that multiplies kColumns from this column on.
//     static uint32_t group_column(uint32_t column);
//     struct Rows {                       // two rows of the weight
//       const uint8_t* values(int h) const;
//       void advance(uint32_t bytes);     // of both rows
//       void load_groups(Group (&groups)[2], uint32_t column) const;
//     };
//     Rows rows(int64_t first, int64_t second) const;
//     // Adds the products of the words of two rows of the weight with the same columns of the input.
//     // `fast` is allowed where all groups fit.
//     template <bool fast, int tiles>
//     void step(const uint4 (&words)[2][kWeightWords], const Group (&groups)[2],
//               const uint4 (&input)[tiles][kInputWords], Sum (&sums)[tiles][4]) const;
//     void prefetch(int64_t n) const;  // what Columns reads of a row of the weight
//     struct InputNumbers;             // what turns sums into outputs: of a row of the input,
//     InputNumbers input_numbers(int64_t m) const;
//     template <int count>
//     struct Columns {  // and of some neighbouring rows of the weight, of which not all may be there
//       Columns(const Product&, int64_t n);
//     };
//     template <int count>
//     void write(int64_t m, int64_t n, const Sum (&sums)[count], const InputNumbers&,
//                const Columns<count>&) const;
//   };
// The input's rows and the weight's are aligned to 16 bytes, and k is a multiple of kColumns, below
// kMaxColumns.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>

#include "machine/async_copy.cuh"
#include "machine/bulk_copy.cuh"
#include "machine/early_launch.cuh"
#include "machine/integers.h"
#include "machine/pack.cuh"
#include "machine/several.cuh"

namespace baraquant::few_rows {

constexpr int kWarps = 8;         // of a block
constexpr int kTile = 8;          // rows of the input that an instruction multiplies
constexpr int64_t kMaxRows = 64;  // with more, it is faster to decode the weight into memory first
constexpr int64_t kMaxColumns = 1 << 28;
constexpr int kStepThreads = 4;  // that multiply the same row in a step
constexpr int kStepShift = 7;    // their columns are 2^7

// What a thread multiplies in a step besides the words of the weight: the numbers of their groups,
// and the same columns of the input. Beyond the last column the input is 0.
template <typename Product, int tiles>
struct StepInput {
  typename Product::Group groups[2];
  uint4 columns[tiles][Product::kInputWords];
};

// How the columns of the input lie that a fragment takes, two words of a thread's `words`: first those of
// the even numbers, then of the odd ones, as a word of eight packed numbers has them.
template <int words>
struct EvenThenOdd {
  static constexpr int kWords = words;
  static __device__ __forceinline__ uint2 apply(uint32_t low, uint32_t high) {
    return {__byte_perm(low, high, 0x6420), __byte_perm(low, high, 0x7531)};
  }
};

// Or as in memory.
template <int words>
struct AsInMemory {
  static constexpr int kWords = words;
  static __device__ __forceinline__ uint2 apply(uint32_t low, uint32_t high) { return {low, high}; }
};

// Multiplies the fragments of a step with columns of the input.
template <typename Product, int tiles>
__device__ __forceinline__ void multiply_fragments(
    const uint32_t (&fragments)[Product::kFragments][4],
    const uint4 (&input)[tiles][Product::kInputWords], typename Product::Sum (&sums)[tiles][4]) {
#pragma unroll
  for (int f = 0; f < Product::kFragments; ++f) {
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const uint4& words = input[t][f / 2];
      Product::multiply(
          sums[t], fragments[f],
          Product::Order::apply(word_of(words, f % 2 * 2), word_of(words, f % 2 * 2 + 1)));
    }
  }
}

// A thread's rows: two of the weight, and one of the input in each tile.
template <typename Product, int tiles>
class Thread {
 public:
  // The block's rows of the input begin at m, the thread's rows of the weight at n, and its columns
  // at `at`. NB: what is computed for rows beyond the last is written nowhere.
  __device__ __forceinline__ Thread(const Product& product, int64_t m, int64_t n, uint32_t at,
                                    uint4* ring)
      : at_(at),
        k_(static_cast<uint32_t>(product.k)),
        rows_(static_cast<int>(product.m - m) - lane() / 4),
        input_(product.input_row(m + lane() / 4) + at / Product::kColumns * kInputBytes),
        tile_bytes_(kTile * (product.k / Product::kColumns) * kInputBytes),
        ring_(ring + lane() / 4 * kRowWords) {
    const int64_t last = product.n - 1, first = n < last ? n : last;
    weight_ = product.rows(first, first + 8 < last ? first + 8 : last);
    weight_.advance(at / Product::kColumns * kWeightBytes - quad_lane() * (kWeightBytes - 16));
  }

  // The following take columns that begin `offset` (a multiple of kColumns) after its first ones.
  // This one copies to a place in shared memory that the warp reads. The threads of a row take
  // neighbouring words, so that they read whole sectors.
  __device__ __forceinline__ void copy_weight(int place, uint32_t offset) const {
    constexpr uint32_t kWordColumns = Product::kColumns / Product::kWeightWords;
    const uint32_t first = at_ + offset - quad_lane() * (Product::kColumns - kWordColumns);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* const from = weight_.values(h) + offset / Product::kColumns * kWeightBytes;
#pragma unroll
      for (uint32_t i = 0; i < Product::kWeightWords; ++i) {
        if (first + i * kStepThreads * kWordColumns < k_) {
          copy_chunk_async(word(place, h, quad_lane() + i * kStepThreads),
                           from + 16 * kStepThreads * i, true);
        }
      }
    }
    commit_copies();
  }
  // Reads what the warp has copied, and lets it be overwritten.
  __device__ __forceinline__ void read_weight(int place,
                                              uint4 (&words)[2][Product::kWeightWords]) const {
    if constexpr (Product::kWeightWords > 1) __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (uint32_t i = 0; i < Product::kWeightWords; ++i) {
        words[h][i] = *word(place, h, quad_lane() * Product::kWeightWords + i);
      }
    }
    if constexpr (Product::kWeightWords > 1) __syncwarp();
  }
  __device__ __forceinline__ void load(StepInput<Product, tiles>& to, uint32_t offset) const {
    const bool inside = at_ + offset < k_;
    to.groups[0] = to.groups[1] = {};
    // NB: not whether the thread's own columns are inside. Where groups scale sums, the thread scales
    // those of the whole step, of which other threads multiplied some columns.
    const uint32_t group_column = Product::group_column(at_ + offset);
    if (group_column < k_) weight_.load_groups(to.groups, group_column);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const bool is_there = inside && rows_ > t * kTile;
      const auto* const from = reinterpret_cast<const uint4*>(
          input_ + t * tile_bytes_ + offset / Product::kColumns * kInputBytes);
#pragma unroll
      for (int i = 0; i < Product::kInputWords; ++i) {
        to.columns[t][i] = {};
        if (is_there) to.columns[t][i] = from[i];
      }
    }
  }

  __device__ __forceinline__ void advance(uint32_t columns) {
    at_ += columns;
    input_ += columns / Product::kColumns * kInputBytes;
    weight_.advance(columns / Product::kColumns * kWeightBytes);
  }

 private:
  static constexpr uint32_t kWeightBytes = 16 * Product::kWeightWords;  // of kColumns
  static constexpr uint32_t kInputBytes = 16 * Product::kInputWords;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  static constexpr uint32_t kRowWords = kStepThreads * Product::kWeightWords;  // of a step
  static __device__ __forceinline__ uint32_t quad_lane() { return threadIdx.x % kStepThreads; }

  // A word of one of the thread's rows. Where a row has more of them than a thread, words of
  // neighbouring rows change places: so a quarter of a warp reads all banks.
  __device__ __forceinline__ uint4* word(int place, int half, uint32_t i) const {
    const uint32_t change = static_cast<uint32_t>(lane()) / 4 % Product::kWeightWords;
    return ring_ + (place * 2 + half) * 8 * kRowWords + (i ^ change);
  }

  uint32_t at_, k_;
  int rows_;  // of the input, from the thread's first one on
  const uint8_t* input_;
  int64_t tile_bytes_;
  uint4* ring_;
  typename Product::Rows weight_;
};

// Steps whose part of the weight is in flight. NB: the shared memory of blocks that run together is
// taken from the input's cache.
template <typename Product>
constexpr int kDepth = Product::kInputWords > 2 ? 3 : 4;

// Blocks of a multiprocessor. NB: where the weight takes more words, a third one would leave the input
// no cache.
template <typename Product, int tiles>
constexpr int kBlocks =
    Product::kInputWords > 2 && Product::kWeightWords == 1 && tiles == 1 ? 3 : 2;

// About as many as run at once. The kernel before it has ended when the others begin.
constexpr unsigned kFirstBlocks = 256;

// The shared memory of a block.
template <typename Product, int tiles, int along_n>
union Shared {
  uint4 ring[kWarps][kDepth<Product> * 2 * Product::kWeightWords * 32];
  typename Product::Sum sums[kWarps / along_n][16 * along_n * kTile * tiles];
};

// Multiplies the columns of a warp's steps, which are `stride` columns apart. `thread` is at the first
// one, and its copies of kDepth - 1 steps are under way. Returns whether a group did not fit.
template <bool fast, typename Product, int tiles>
__device__ __forceinline__ bool multiply(const Product& product, Thread<Product, tiles> thread,
                                         uint32_t first, uint32_t stride,
                                         typename Product::Sum (&sums)[tiles][4]) {
  // Steps that the input is loaded before.
  constexpr bool kHasRoom = Product::kInputWords <= 2;  // in registers
  constexpr int kDepth = few_rows::kDepth<Product>;
  constexpr int kAhead = !fast || tiles > 2 ? 0 : tiles == 2 || !kHasRoom ? 1 : kDepth - 1;
  constexpr int kUnrolled = kDepth % (1 + kAhead) == 0 ? kDepth : kDepth * (1 + kAhead);
  const auto k = static_cast<uint32_t>(product.k);
  StepInput<Product, tiles> inputs[1 + kAhead];
  bool all_fit = true;
#pragma unroll
  for (int d = 0; d < kAhead; ++d) thread.load(inputs[d], d * stride);
  for (uint32_t from = first; from < k; from += kUnrolled * stride) {
#pragma unroll
    for (int d = 0; d < kUnrolled; ++d) {
      if (from + d * stride >= k) break;
      thread.load(inputs[(d + kAhead) % (1 + kAhead)], (d + kAhead) * stride);
      const int last = d + kDepth - 1;
      thread.copy_weight(last % kDepth, last * stride);
      wait_for_copies<kDepth - 1>();
      uint4 words[2][Product::kWeightWords];
      thread.read_weight(d % kDepth, words);
      const auto& input = inputs[d % (1 + kAhead)];
      product.template step<fast>(words, input.groups, input.columns, sums);
      if (fast && Product::kMayNotFit) {
        all_fit &= Product::fits(input.groups[0]) && Product::fits(input.groups[1]);
      }
    }
    thread.advance(kUnrolled * stride);
  }
  wait_for_copies<0>();
  return !all_fit;
}

// `along_n` warps of a block take 16 rows of the weight each; as many groups of them as there are
// divide the depth.
template <typename Product, int tiles, int along_n, int most>
__global__ void __launch_bounds__(32 * kWarps, kBlocks<Product, tiles>)
    few_rows_kernel(const __grid_constant__ Several<Product, most> several) {
  using Sum = typename Product::Sum;
  constexpr int along_k = kWarps / along_n, kRows = 16 * along_n;
  constexpr int kOutputs = kRows * kTile * tiles;              // of the block
  constexpr int64_t kChunkBytes = 16 * Product::kWeightWords;  // of kColumns
  constexpr uint32_t kWarpStep = 4 * Product::kColumns, kStep = kWarpStep * along_k;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<Product, tiles, along_n>*>(memory);

  unsigned block = blockIdx.x;
  const Product& product = several.of_block(block);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp / along_n, place_n = warp % along_n;
  const int64_t n = int64_t(block) * kRows, m = int64_t(blockIdx.y) * kTile * tiles;
  if (threadIdx.x < kRows && n + threadIdx.x < product.n) {
    const int64_t row = n + threadIdx.x;
    product.prefetch(row);
    if (blockIdx.x < kFirstBlocks) {
      prefetch_row<1024>(product.rows(row, row).values(0),
                         product.k / Product::kColumns * kChunkBytes);
    }
  }
  if (!product.input_is_newest) wait_for_last_kernel();

  const uint32_t first = static_cast<uint32_t>(part) * kWarpStep;
  const Thread<Product, tiles> thread(product, m, n + place_n * 16 + lane / 4,
                                      first + static_cast<uint32_t>(lane % 4 * Product::kColumns),
                                      shared.ring[warp]);
  const auto begin_copies = [&] {
#pragma unroll
    for (int d = 0; d < kDepth<Product> - 1; ++d) thread.copy_weight(d, d * kStep);
  };
  begin_copies();
  if (product.input_is_newest) wait_for_last_kernel();
  let_next_kernel_begin();

  Sum sums[tiles][4] = {};
  const bool again = multiply<true>(product, thread, first, kStep, sums);
  if (Product::kMayNotFit && __any_sync(0xffffffffu, again)) {
#pragma unroll
    for (auto& tile : sums) {
      for (Sum& sum : tile) sum = 0;
    }
    begin_copies();
    multiply<false>(product, thread, first, kStep, sums);
  }
  __syncthreads();

#pragma unroll
  for (int t = 0; t < tiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared.sums[part][((place_n * tiles + t) * 4 + i) * 32 + lane] = sums[t][i];
    }
  }
  __syncthreads();
  for (int o = static_cast<int>(threadIdx.x); o < kOutputs; o += 32 * kWarps) {
    const int t = o / kRows, r = o % kRows;  // rows of the input and of the weight
    if (m + t >= product.m || n + r >= product.n) continue;
    const int fragment = (r / 16 * tiles + t / kTile) * 4 + r / 8 % 2 * 2 + t % 2;
    const int from = fragment * 32 + r % 8 * 4 + t % kTile / 2;
    Sum sum[1] = {};
#pragma unroll
    for (int w = 0; w < along_k; ++w) sum[0] += shared.sums[w][from];  // always in this order
    const typename Product::template Columns<1> columns(product, n + r);
    product.write(m + t, n + r, sum, product.input_numbers(m + t), columns);
  }
}

// --- on the host: groups of columns --------------------------------------------------------------

// Whether the columns are whole chunks, each of one group, whose number a shift finds.
inline bool has_whole_chunks(int64_t columns, int64_t group_size, int chunk) {
  return columns % chunk == 0 && columns < kMaxColumns &&
         (group_size >= columns ||
          (group_size % chunk == 0 && std::has_single_bit(static_cast<uint64_t>(group_size))));
}

// The number of a column's group is the column, shifted by this.
inline int group_shift(int64_t columns, int64_t group_size) {
  return group_size >= columns ? 31 : std::countr_zero(static_cast<uint64_t>(group_size));
}

// --- launchers -----------------------------------------------------------------------------------

template <typename Product>
using Products = std::span<const Product>;

template <int most, int tiles, int along_n, typename Product>
void launch_tiles(Products<Product> products, cudaStream_t stream) {
  constexpr auto kernel = &few_rows_kernel<Product, tiles, along_n, most>;
  const auto several = Several<Product, most>::of(
      products, [](const Product& product) { return divide_up(product.n, 16 * along_n); });
  const dim3 blocks(several.blocks(),
                    static_cast<unsigned>(divide_up(products[0].m, kTile * tiles)));
  constexpr size_t kBytes = sizeof(Shared<Product, tiles, along_n>);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes});
  const LaunchShape shape{blocks, 32 * kWarps, kBytes};
  launch_waiting(kernel, is_compiled_for_hopper<kernel>(), shape, stream, several);
}

template <bool joins, int along_n, typename Product>
void launch_along(Products<Product> products, cudaStream_t stream) {
  const int64_t m = products[0].m;
  if constexpr (joins) {
    if (products.size() > 1) return launch_tiles<kMostTogether, 1, along_n>(products, stream);
  }
  if (m <= kTile) return launch_tiles<1, 1, along_n>(products, stream);
  if (m <= 2 * kTile) return launch_tiles<1, 2, along_n>(products, stream);
  launch_tiles<1, 4, along_n>(products, stream);
}

// With 32 rows of the weight a block reads the input half as often; with 16 there are more blocks. The
// order of sums depends on it.
inline bool is_wide(int64_t n, int multiprocessors) {
  return 2 * divide_up(n, 32) >= 3 * int64_t(multiprocessors);
}

// The product of an input with a weight, or where there are instances for that (`joins`) with up to
// kMostTogether weights of one form, if the input has at most kTile rows. Floating sums have an order:
// is_wide() is then the same for all.
template <typename Product, bool joins>
void launch(Products<Product> products, int multiprocessors, cudaStream_t stream) {
  int64_t n = 0;
  for (const Product& product : products) n += product.n;
  if constexpr (!std::is_same_v<typename Product::Sum, int>) n = products[0].n;
  if (is_wide(n, multiprocessors)) return launch_along<joins, 2>(products, stream);
  launch_along<joins, 1>(products, stream);
}

}  // namespace baraquant::few_rows
