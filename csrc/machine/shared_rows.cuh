// SPDX-License-Identifier: BSD-3-Clause
// The product of some input rows with a weight of integers, which is decoded in registers, for more
// rows than few_rows.cuh takes: the warps of a block share the input through shared memory, and a
// warp multiplies a tile of it by 16 rows of the weight. The depth is divided among the blocks of a
// cluster, which add their sums in the order of the depth.
//
// What is multiplied is a class as few_rows.cuh describes. A thread keeps the bytes that it loads of
// a row of the weight, and reads the same columns of the input, as there.
#pragma once

#include "machine/few_rows.cuh"
#include "machine/shared_memory.cuh"

namespace baraquant::shared_rows {

constexpr int kWarps = 8;                    // of a block
constexpr int kRows = 16 * kWarps;           // of the weight, in a block
constexpr int kMostParts = few_rows::kTile;  // of the depth, in a cluster

// The shared memory of a block. A stage has the columns of a step.
template <typename Product, int tiles>
struct Layout {
  static constexpr int kInputRows = few_rows::kTile * tiles;
  static constexpr int kColumns = 4 * Product::kColumns;
  static constexpr int kWords = 4 * Product::kInputWords;  // of 16 bytes, of a row of the input
  static constexpr int kStages = Product::kInputWords == 2 ? 4 : 3;

  // Eight neighbours among the threads read a word each at once: those of four threads of two rows.
  // The distance of rows and the order of words put these into different banks.
  static constexpr int kStride = kWords + Product::kInputWords / 2;
  static __device__ __forceinline__ int place(int thread, int word) {
    return Product::kInputWords == 2 ? thread * 2 + word : thread * 4 + (word ^ thread / 2);
  }

  struct Stage {
    uint4 input[kInputRows * kStride];
    uint4 weight[kWarps][2][Product::kWeightWords][32];
  };
  static constexpr int kSumStride = kRows + 4;
  union Shared {
    Stage stages[kStages];
    typename Product::Sum sums[kInputRows][kSumStride];
  };
};

// All blocks of the cluster come here before one goes on; they see what the others wrote.
__device__ __forceinline__ void wait_for_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
#endif
}

// Reads what the same pointer means in another block of the cluster.
template <typename T>
__device__ __forceinline__ T load_of_block(const T* pointer, unsigned block) {
  static_assert(sizeof(T) == 4);
  uint32_t bits = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
               : "=r"(there)
               : "r"(shared_address(pointer)), "r"(block));
  asm volatile("ld.shared::cluster.u32 %0, [%1];\n" : "=r"(bits) : "r"(there) : "memory");
#endif
  return bit_cast<T>(bits);
}

// What a thread does in a step. It has two of the 16 rows of the weight that its warp multiplies.
template <typename Product, int tiles>
class Thread {
 public:
  using Memory = Layout<Product, tiles>;
  using Group = typename Product::Group;
  using Sums = typename Product::Sum[tiles][4];

  __device__ __forceinline__ Thread(const Product& product, int64_t m, int64_t n)
      : k_(static_cast<uint32_t>(product.k)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = n + 16 * warp() + 8 * h + lane() / 4;
      rows_[h] = product.row(row < product.n ? row : product.n - 1);
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = row_of(i);
      is_there_[i] = m + row < product.m;
      input_[i] = product.input_row(is_there_[i] ? m + row : 0) + word() * 16;
    }
  }

  // Copies the columns of a step that begins at `column`. NB: a thread waits for its own copies.
  __device__ __forceinline__ void copy(typename Memory::Stage& to, uint32_t column) const {
    const uint32_t step = column / Product::kColumns;
    const bool inside = column + word() / Product::kInputWords * Product::kColumns < k_;
    const int place = Memory::place(word() / Product::kInputWords, word() % Product::kInputWords);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const uint8_t* const from = input_[i] + (inside ? step * (16 * Product::kInputWords) : 0);
      copy_chunk_async(to.input + row_of(i) * Memory::kStride + place, from,
                       inside && is_there_[i]);
    }
    if (column + own_columns() < k_) {
      const uint32_t chunk = step + lane() % 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint8_t* const from = rows_[h].values + chunk * (16 * Product::kWeightWords);
#pragma unroll
        for (int i = 0; i < Product::kWeightWords; ++i) {
          copy_chunk_async(&to.weight[warp()][h][i][lane()], from + 16 * i, true);
        }
      }
    }
  }

  __device__ __forceinline__ void load_groups(Group (&groups)[2], uint32_t column) const {
    const bool inside = column + own_columns() < k_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      groups[h] = {};
      if (inside) groups[h] = rows_[h].group(column + own_columns());
    }
  }

  __device__ __forceinline__ void multiply(Sums& sums, const typename Memory::Stage& stage,
                                           const Group (&groups)[2]) const {
    uint4 weight[2][Product::kWeightWords];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < Product::kWeightWords; ++i) {
        weight[h][i] = stage.weight[warp()][h][i][lane()];
      }
    }
    uint32_t fragments[Product::kFragments][4];
    Product::decode(weight, groups, fragments);
    // An instruction waits for the one before it that adds to the same sums.
    constexpr int kTogether = Product::kInputWords == 2 ? 4 : 2;
#pragma unroll
    for (int first = 0; first < tiles; first += kTogether) {
      uint4 words[kTogether][Product::kInputWords];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int m = (first + t) * few_rows::kTile + lane() / 4;
#pragma unroll
        for (int i = 0; i < Product::kInputWords; ++i) {
          words[t][i] = stage.input[m * Memory::kStride + Memory::place(lane() % 4, i)];
        }
      }
#pragma unroll
      for (int f = 0; f < Product::kFragments; ++f) {
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
          Product::multiply(sums[first + t], fragments[f], few_rows::input_word(words[t], f, 0),
                            few_rows::input_word(words[t], f, 1));
        }
      }
    }
  }

  __device__ __forceinline__ void store(typename Memory::Shared& shared, const Sums& sums) const {
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int m = t * few_rows::kTile + lane() % 4 * 2 + i % 2;
        shared.sums[m][warp() * 16 + i / 2 * 8 + lane() / 4] = sums[t][i];
      }
    }
  }

 private:
  // The thread copies one word of several rows of the input.
  static constexpr int kCopies = Memory::kInputRows * Memory::kWords / (32 * kWarps);
  static __device__ __forceinline__ int word() {
    return static_cast<int>(threadIdx.x) % Memory::kWords;
  }
  static __device__ __forceinline__ int row_of(int copy) {
    return static_cast<int>(threadIdx.x) / Memory::kWords + copy * (32 * kWarps / Memory::kWords);
  }
  static __device__ __forceinline__ uint32_t own_columns() {
    return static_cast<uint32_t>(lane() % 4 * Product::kColumns);
  }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }

  uint32_t k_;
  const uint8_t* input_[kCopies];
  bool is_there_[kCopies];
  typename Product::Row rows_[2];
};

// Block (x, y, z) multiplies rows x of the weight by rows y of the input, in part z of the depth.
template <typename Product, int tiles>
__global__ void __launch_bounds__(32 * kWarps, 2)
    shared_rows_kernel(const Product product, uint32_t steps_of_part) {
  using Memory = Layout<Product, tiles>;
  constexpr int kStages = Memory::kStages;
  constexpr uint32_t kStep = Memory::kColumns;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  wait_for_last_kernel();

  const int64_t n = int64_t(blockIdx.x) * kRows, m = int64_t(blockIdx.y) * Memory::kInputRows;
  const uint32_t steps = (static_cast<uint32_t>(product.k) + kStep - 1) / kStep;
  const uint32_t begin = min(blockIdx.z * steps_of_part, steps);
  const uint32_t end = min(begin + steps_of_part, steps);
  const Thread<Product, tiles> thread(product, m, n);
  typename Thread<Product, tiles>::Sums sums = {};
  typename Product::Group groups[2][2];  // of this step and of the next one

#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (begin + s < end) thread.copy(shared.stages[s], (begin + s) * kStep);
    commit_copies();
  }
  if (begin < end) thread.load_groups(groups[1], begin * kStep);
  int stage = 0;
  for (uint32_t step = begin; step < end; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // all copies of this step are there, and nobody reads the last one any more
    const uint32_t ahead = step + kStages - 1;
    const int free = stage == 0 ? kStages - 1 : stage - 1;
    if (ahead < end) thread.copy(shared.stages[free], ahead * kStep);
    commit_copies();
#pragma unroll
    for (int h = 0; h < 2; ++h) groups[0][h] = groups[1][h];
    if (step + 1 < end) thread.load_groups(groups[1], (step + 1) * kStep);
    thread.multiply(sums, shared.stages[stage], groups[0]);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();
  thread.store(shared, sums);

  const unsigned parts = gridDim.z;
  if (parts > 1) {
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  const int own = Memory::kInputRows / static_cast<int>(parts) * kRows;  // outputs of this block
  for (int o = static_cast<int>(threadIdx.x); o < own; o += 32 * kWarps) {
    const int t = static_cast<int>(blockIdx.z) * (own / kRows) + o / kRows, r = o % kRows;
    if (m + t >= product.m || n + r >= product.n) continue;
    typename Product::Sum sum = 0;
    if (parts == 1) {
      sum = shared.sums[t][r];
    } else {
      for (unsigned p = 0; p < parts; ++p) sum += load_of_block(&shared.sums[t][r], p);
    }
    product.write(m + t, n + r, sum);
  }
  if (parts > 1) wait_for_cluster();  // nobody leaves while its sums are read
}

// --- launchers -----------------------------------------------------------------------------------

template <typename Product, int tiles>
void launch_tiles(const Product& product, int multiprocessors, cudaStream_t stream) {
  using Memory = Layout<Product, tiles>;
  constexpr auto kernel = &shared_rows_kernel<Product, tiles>;
  constexpr size_t kBytes = sizeof(typename Memory::Shared);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes});
  const bool is_hopper = is_compiled_for_hopper<kernel>();
  const int64_t blocks = divide_up(product.n, kRows) * divide_up(product.m, Memory::kInputRows);
  const auto steps = static_cast<uint32_t>(divide_up(product.k, Memory::kColumns));
  unsigned parts = 1;
  while (is_hopper && parts < kMostParts && blocks * parts * 2 <= 2 * multiprocessors &&
         steps >= parts * 4) {
    parts *= 2;
  }
  const dim3 grid(static_cast<unsigned>(divide_up(product.n, kRows)),
                  static_cast<unsigned>(divide_up(product.m, Memory::kInputRows)), parts);
  launch_waiting(kernel, is_hopper, {grid, 32 * kWarps, kBytes, parts}, stream, product,
                 (steps + parts - 1) / parts);
}

template <typename Product>
void launch(const Product& product, int multiprocessors, cudaStream_t stream) {
  if (product.m <= 4 * few_rows::kTile) {
    return launch_tiles<Product, 4>(product, multiprocessors, stream);
  }
  launch_tiles<Product, 8>(product, multiprocessors, stream);
}

}  // namespace baraquant::shared_rows
