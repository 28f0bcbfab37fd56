// SPDX-License-Identifier: BSD-3-Clause
// The threads of a block of warpgroup_rows.cuh: those that multiply, and the one that brings the input.
#pragma once

#include "few_rows/few_rows.cuh"
#include "few_rows/wgmma.cuh"
#include "machine/bulk_copy.cuh"
#include "machine/memory_barrier.cuh"

namespace baraquant::warpgroup_rows {

constexpr int kGroupRows = 64;  // of the weight, that a warpgroup multiplies
constexpr int kGroupThreads = 128;
constexpr int kPiece = 2;  // fragments that are decoded while others are multiplied

// A block for so many rows of the input, and its shared memory.
template <typename Product, int input_rows>
struct Layout {
  static constexpr int kGroups = input_rows <= 64 ? 4 : 2;  // warpgroups that multiply
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kThreads = kGroupThreads * (kGroups + 1);  // the last ones bring the input
  static constexpr int kTileBytes = input_rows * wgmma::kRowBytes;
  static constexpr int kFragmentsOfRow = wgmma::kRowBytes / wgmma::kDepthBytes;
  static constexpr int kTiles = Product::kFragments / kFragmentsOfRow;  // of a stage
  static constexpr int kStageBytes = kTiles * kTileBytes;
  static constexpr int kStages = kStageBytes <= 16384 ? 8 : kStageBytes <= 32768 ? 4 : 3;
  // Steps of the weight in flight. NB: the largest stages leave room for few.
  static constexpr int kWords = kStageBytes <= 32768 ? 6 : 4;
  static constexpr int kDepth = kWords / Product::kWeightWords;

  struct Steps {
    uint8_t input[kStages][kTiles][kTileBytes];
    uint4 weight[kWarps][kDepth][2][Product::kWeightWords][32];
  };
  struct alignas(1024) Shared {
    union {
      Steps steps;
      // For each warpgroup along the depth: a row of the input has those of the rows of the weight.
      typename Product::Sum sums[kGroups * (kGroupRows + 4) * input_rows];
    };
    MemoryBarrier full[kStages], empty[kStages];
  };
  static constexpr size_t kBytes = sizeof(Shared);
  // A block has the registers of its launch, in eights for a thread.
  static constexpr int kRegistersAtLaunch = 65536 / kThreads / 8 * 8;
  static constexpr int kLoaderRegisters = 24;
  static constexpr int kRegisters =
      (kRegistersAtLaunch * (kGroups + 1) - kLoaderRegisters) / kGroups / 8 * 8;
};

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// What a block multiplies: its warpgroups take neighbouring rows of the weight, `along_n` of them,
// and the others of them every along_k-th step of the depth. Beyond the last column the input is 0.
struct Work {
  uint32_t begin, steps;  // of the depth
  int along_n, along_k;

  __device__ __forceinline__ int rows() const { return kGroupRows * along_n; }
  __device__ __forceinline__ int sum_stride() const { return rows() + 4; }
};

// The thread that brings the input: a stage for each step.
template <typename Product, int input_rows>
class Loader {
 public:
  using Memory = Layout<Product, input_rows>;
  using Shared = typename Memory::Shared;

  // `arranged`: the tiles of the block's rows of the input.
  __device__ __forceinline__ Loader(Shared& shared, const uint8_t* arranged, const Work& work)
      : shared_(shared), from_(arranged + work.begin * kBytes), steps_(work.steps) {}

  __device__ __forceinline__ void load() const {
    for (uint32_t step = 0; step < steps_; ++step) {
      const uint32_t stage = step % Memory::kStages;
      shared_.empty[stage].wait((step / Memory::kStages + 1) % 2);
      shared_.full[stage].arrive_and_expect(kBytes);
      copy_bulk_async(shared_.steps.input[stage], from_ + step * kBytes, kBytes,
                      shared_.full[stage]);
    }
  }

 private:
  static constexpr uint32_t kBytes = Memory::kTiles * Memory::kTileBytes;

  Shared& shared_;
  const uint8_t* from_;
  uint32_t steps_;
};

// The compiler is to keep a number rather than to compute it again.
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }

// A thread of the warpgroups that multiply. It has two rows of the weight, of which it copies, reads
// and decodes the same columns: those of a chunk in each step of its warpgroup.
template <typename Product, int input_rows>
class Thread {
 public:
  using Memory = Layout<Product, input_rows>;
  using Shared = typename Memory::Shared;
  using Sums = typename Product::Sum[input_rows / 2];

  __device__ __forceinline__ Thread(const Product& product, Shared& shared, int64_t n,
                                    const Work& work)
      : shared_(shared),
        columns_(static_cast<uint32_t>(product.k)),
        stride_(static_cast<uint32_t>(work.along_k)),
        first_(static_cast<uint32_t>(__shfl_sync(0xffffffffu, group() / work.along_n, 0))),
        steps_(work.steps),
        stage_places_(wgmma::place_of(shared_address(shared.steps.input))),
        ring_(shared_address(shared.steps.weight[warp()]) +
              static_cast<uint32_t>(lane()) / 4 * kRowWords * 16),
        row_(group() % work.along_n * kGroupRows + warp() % 4 * 16 + lane() / 4),
        column_(
            ((work.begin + first_) * few_rows::kStepThreads + static_cast<uint32_t>(lane() % 4)) *
            Product::kColumns) {
    const int64_t last = product.n - 1, row = n + row_ < last ? n + row_ : last;
    rows_ = product.rows(row, row + 8 < last ? row + 8 : last);
    rows_.keep();
    keep(ring_);
    keep(column_);
  }

  __device__ __forceinline__ void begin_copies() const {
#pragma unroll 1
    for (uint32_t d = 0; d < Memory::kDepth - 1; ++d) {
      copy(column_ + d * column_stride(), ring_ + d * kSlotBytes);
    }
  }

  // One piece of a step is decoded while another is multiplied.
  __device__ __forceinline__ void multiply(Sums& sums) const {
    constexpr int kPieces = Product::kFragments / kPiece;
    // Whether a step begins before the last one is multiplied. As measured on an H200.
    constexpr bool kOverlapsSteps = input_rows == 256 && kPieces > 2;
    constexpr uint32_t kRingBytes = Memory::kDepth * kSlotBytes;
    typename Product::Group groups[2][2];  // of this step, and of the next one
    uint4 weight[2][Product::kWeightWords];
    Piece pieces[2];
    uint32_t column = column_, slot = ring_, last_slot = ring_ + kRingBytes - kSlotBytes;
    load_groups(groups[1], column);
    for (uint32_t step = first_; step < steps_; step += stride_) {
      const uint32_t stage = step % Memory::kStages;
#pragma unroll
      for (int h = 0; h < 2; ++h) groups[0][h] = groups[1][h];
      load_groups(groups[1], column + column_stride());
      copy(column + (Memory::kDepth - 1) * column_stride(), last_slot);
      wait_for_copies<Memory::kDepth - 1>();
      read_weight(weight, slot);
      const bool fit =
          !Product::kMayNotFit ||
          __all_sync(0xffffffffu, Product::fits(groups[0][0]) && Product::fits(groups[0][1]));
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        Piece& piece = pieces[p % 2];
        if (fit) {
          Product::template decode<true>(weight, groups[0], p * kPiece, piece.fragments);
        } else {
          Product::template decode<false>(weight, groups[0], p * kPiece, piece.fragments);
        }
        if (p == 0) {
          // NB: the loaders wait for the last stage before they fill this one.
          if (!kOverlapsSteps) wgmma::wait<0>();
          if (!kOverlapsSteps && step != first_) release(step - stride_);
          shared_.full[stage].wait(step / Memory::kStages % 2);
        }
        multiply_piece(sums, piece, stage, p * kPiece);
        if (p > 0 || kOverlapsSteps) wgmma::wait<1>();
        if (p == 0 && kOverlapsSteps && step != first_) release(step - stride_);
      }
      column += column_stride();
      last_slot = slot;
      slot = slot + kSlotBytes == ring_ + kRingBytes ? ring_ : slot + kSlotBytes;
    }
    wait_for_copies<0>();
    wgmma::wait<0>();
    wgmma::keep(sums);
  }

  __device__ __forceinline__ void store(const Sums& sums, const Work& work) const {
    auto* const to =
        shared_.sums + static_cast<int>(first_) * input_rows * work.sum_stride() + row_;
#pragma unroll
    for (int i = 0; i < input_rows / 2; ++i) {
      const int m = i / 4 * 8 + lane() % 4 * 2 + i % 2;
      to[m * work.sum_stride() + i % 4 / 2 * 8] = sums[i];
    }
  }

 private:
  static constexpr uint32_t kWordBytes = 32 * 16;  // of all threads of a warp
  static constexpr uint32_t kSlotBytes = 2 * Product::kWeightWords * kWordBytes;
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ uint32_t quad_lane() {
    return threadIdx.x % few_rows::kStepThreads;
  }
  static __device__ __forceinline__ int group() {
    return static_cast<int>(threadIdx.x) / kGroupThreads;
  }
  struct Piece {
    uint32_t fragments[kPiece][4];
  };

  // From one step of the warpgroup to the next.
  __device__ __forceinline__ uint32_t column_stride() const {
    return stride_ * (few_rows::kStepThreads * Product::kColumns);
  }

  __device__ __forceinline__ void release(uint32_t step) const {
    shared_.empty[step % Memory::kStages].arrive();
  }

  // The warp copies to a slot that it reads alone. The threads of a row take neighbouring words, so that
  // they read whole sectors. `column`: the thread's own one.
  __device__ __forceinline__ void copy(uint32_t column, uint32_t slot) const {
    constexpr uint32_t kWordColumns = Product::kColumns / Product::kWeightWords;
    const uint32_t first = column - quad_lane() * (Product::kColumns - kWordColumns);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* const from = rows_.values(h) + first / kWordColumns * 16;
#pragma unroll
      for (uint32_t i = 0; i < Product::kWeightWords; ++i) {
        if (first + i * few_rows::kStepThreads * kWordColumns < columns_) {
          copy_chunk_async(slot + word_offset(h, quad_lane() + i * few_rows::kStepThreads),
                           from + 16 * few_rows::kStepThreads * i, true);
        }
      }
    }
    commit_copies();
  }

  // Reads what the warp has copied, and lets it be overwritten.
  __device__ __forceinline__ void read_weight(uint4 (&weight)[2][Product::kWeightWords],
                                              uint32_t slot) const {
    if constexpr (Product::kWeightWords > 1) __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (uint32_t i = 0; i < Product::kWeightWords; ++i) {
        weight[h][i] = load_shared(slot + word_offset(h, quad_lane() * Product::kWeightWords + i));
      }
    }
    if constexpr (Product::kWeightWords > 1) __syncwarp();
  }

  __device__ __forceinline__ void load_groups(typename Product::Group (&groups)[2],
                                              uint32_t column) const {
    groups[0] = groups[1] = {};
    if (column < columns_) rows_.load_groups(groups, column);
  }

  // Multiplies the fragments of a step from `begin` on.
  __device__ __forceinline__ void multiply_piece(Sums& sums, Piece& piece, uint32_t stage,
                                                 int begin) const {
    const uint32_t places = stage_places_ + stage * (sizeof(shared_.steps.input[0]) / 16);
    // Between the instructions, none may write what they read.
#pragma unroll
    for (auto& fragment : piece.fragments) wgmma::keep(fragment);
    wgmma::begin();
#pragma unroll
    for (int f = 0; f < kPiece; ++f) {
      const int tile = (begin + f) / Memory::kFragmentsOfRow;
      const int depth = (begin + f) % Memory::kFragmentsOfRow;
      const uint32_t place = places + static_cast<uint32_t>(tile * Memory::kTileBytes / 16) +
                             static_cast<uint32_t>(depth) * wgmma::kDepthPlace;
      wgmma::multiply<Product::kTypes>(sums, piece.fragments[f], wgmma::descriptor(place));
    }
    wgmma::commit();
  }

  // Of a word of one of the thread's rows in a slot. Where a row has more of them than a thread, words
  // of neighbouring rows change places: so a quarter of a warp reads all banks.
  static constexpr uint32_t kRowWords = few_rows::kStepThreads * Product::kWeightWords;
  static __device__ __forceinline__ uint32_t word_offset(uint32_t half, uint32_t word) {
    const uint32_t change = static_cast<uint32_t>(lane()) / 4 % Product::kWeightWords;
    return (half * 8 * kRowWords + (word ^ change)) * 16;
  }

  Shared& shared_;
  uint32_t columns_, stride_, first_, steps_;
  uint32_t stage_places_;  // of the first stage
  uint32_t ring_;          // the address of the first word of the thread's first row
  int row_;                // of the weight, in the block
  uint32_t column_;        // the thread's first one
  typename Product::Rows rows_;
};

}  // namespace baraquant::warpgroup_rows
