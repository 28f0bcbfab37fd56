// SPDX-License-Identifier: BSD-3-Clause
// The product of some input rows with a weight of integers, which is decoded in registers, for more
// rows than few_rows.cuh takes, on Hopper: warpgroups decode the weight and multiply by wgmma, with
// the weight as the first matrix. The depth is divided among the blocks of a cluster, which add their
// sums in the order of the depth.
//
// A thread multiplies neighbouring bytes of a row of the weight. So the columns of the input have to
// lie where an instruction looks for those of that thread: a kernel of its own arranges the input in
// memory, in tiles as they lie in shared memory, and a single thread brings them to the others.
//
// What is multiplied is a class as few_rows.cuh describes, with besides
//   static constexpr wgmma::Types kTypes;
//   static constexpr int kFragments;  // of a step
//   // Some fragments of a step, from `first` on, for rows and columns as mma.sync has them.
//   template <bool fast, int count>
//   static void decode(const uint4 (&words)[2][kWeightWords], const Group (&groups)[2], int first,
//                      uint32_t (&fragments)[count][4]);
// and without scaled sums.
#pragma once

#include "few_rows/warpgroup_threads.cuh"
#include "machine/cluster.cuh"
#include "machine/early_launch.cuh"
#include "machine/named_barrier.cuh"

namespace baraquant::warpgroup_rows {

constexpr int64_t kMaxRows = 1024;  // of the input
constexpr int kMaxParts = 2;        // of the depth, in a cluster. NB: larger ones leave SMs empty

// --- kernels -------------------------------------------------------------------------------------

// Arranges the input in tiles of input_rows rows: all steps of the first rows, then those of the next
// ones. A row has `chunks` of Order::kWords 16-byte words, one for each thread that multiplies a step of
// it; beyond the last row and the last chunk there are zeros. A thread arranges the same word of four
// chunks.
template <typename Order>
__global__ void arrange_kernel(const uint8_t* input, int64_t rows, uint32_t chunks, uint32_t steps,
                               uint32_t input_rows, uint8_t* arranged) {
  constexpr uint32_t kWords = Order::kWords, kQuad = few_rows::kStepThreads;
  constexpr uint32_t kWordsOfTile = wgmma::kRowBytes / 16;
  let_next_kernel_begin();
  wait_for_last_kernel();
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t word = at % kWords, step = at / kWords % steps, row = at / kWords / steps;
  const uint32_t tile_row = row % input_rows, block = row / input_rows;
  if (row >= divide_up(rows, input_rows) * input_rows) return;

  uint4 words[kQuad] = {};
  const auto* const from = reinterpret_cast<const uint4*>(input) + int64_t(row) * chunks * kWords;
#pragma unroll
  for (uint32_t t = 0; t < kQuad; ++t) {
    const uint32_t chunk = step * kQuad + t;
    if (row < rows && chunk < chunks) words[t] = from[chunk * kWords + word];
  }
  constexpr uint32_t kTiles = kQuad * kWords / kWordsOfTile;
  const uint32_t tile_bytes = input_rows * wgmma::kRowBytes;
  uint8_t* const tiles = arranged + (int64_t(block) * steps + step) * kTiles * tile_bytes;
#pragma unroll
  for (uint32_t f = 0; f < 2; ++f) {  // the fragments that take the words
    uint2 x[kQuad];
#pragma unroll
    for (uint32_t t = 0; t < kQuad; ++t) {
      x[t] = Order::apply(word_of(words[t], 2 * f), word_of(words[t], 2 * f + 1));
    }
    const uint32_t pair = 2 * (2 * word + f);
    const auto place = [&](uint32_t i) {
      return reinterpret_cast<uint4*>(tiles + i / kWordsOfTile * tile_bytes +
                                      wgmma::swizzled(tile_row, i % kWordsOfTile));
    };
    *place(pair) = {x[0].x, x[1].x, x[2].x, x[3].x};
    *place(pair + 1) = {x[0].y, x[1].y, x[2].y, x[3].y};
  }
}

template <typename T>
__device__ __forceinline__ void load_four(const T* from, T (&result)[4]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = bit_cast<T>(word_of(words, i));
}

// Writes the outputs of the input's rows of this block, which is one of `parts`. A thread takes four
// neighbouring rows of the weight, whose numbers it has got, and several of the input's at once. The
// sums are added in the order of the depth.
template <typename Product, int input_rows>
__device__ __forceinline__ void write(const Product& product,
                                      const typename Layout<Product, input_rows>::Shared& shared,
                                      const Work& work, int64_t m, int64_t n,
                                      const typename Product::template Columns<4>& columns,
                                      int part, int parts) {
  constexpr int kAtOnce = input_rows < 128 ? 4 : 8;
  const int fours = work.rows() / 4, r = static_cast<int>(threadIdx.x) % fours * 4;
  const int step = 32 * Layout<Product, input_rows>::kWarps / fours;
  const int own = input_rows / parts, end = (part + 1) * own;
  const auto rows = static_cast<int>(product.m - m < end ? product.m - m : end);
  if (n + r >= product.n) return;
  for (int t = part * own + static_cast<int>(threadIdx.x) / fours; t < rows; t += kAtOnce * step) {
    const auto row = [&](int i) { return t + i * step; };
    typename Product::Sum sums[kAtOnce][4] = {};
    typename Product::InputNumbers numbers[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (row(i) < rows) numbers[i] = product.input_numbers(m + row(i));
    }
    for (int p = 0; p < parts; ++p) {
      for (int g = 0; g < work.along_k; ++g) {
        typename Product::Sum of_part[kAtOnce][4] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (row(i) >= rows) continue;
          const auto* const from = &shared.sums[(g * input_rows + row(i)) * work.sum_stride() + r];
          if (p == part) {
            load_four(from, of_part[i]);
          } else {
            load_of_block(from, static_cast<unsigned>(p), of_part[i]);
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] += of_part[i][j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (row(i) < rows) product.write(m + row(i), n + r, sums[i], numbers[i], columns);
    }
  }
}

// A block takes 64 * along_n rows of the weight and input_rows of the input. The blocks that take the
// same rows of the weight are neighbours, so that these are read once from memory. The registers that
// the loader does not need go to those who multiply.
template <typename Product, int input_rows>
__global__ void __launch_bounds__(Layout<Product, input_rows>::kThreads, 1)
    warpgroup_rows_kernel(const Product product, const uint8_t* arranged, uint32_t steps_of_part,
                          int along_n, uint32_t along_m) {
  using Memory = Layout<Product, input_rows>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Memory::Shared*>(memory);
  const Work work{blockIdx.z * steps_of_part, steps_of_part, along_n, Memory::kGroups / along_n};
  const uint32_t block_m = blockIdx.x % along_m, block_n = blockIdx.x / along_m;
  const int64_t n = int64_t(block_n) * work.rows(), m = int64_t(block_m) * input_rows;
  if (threadIdx.x < Memory::kStages) {
    shared.full[threadIdx.x].init(1);
    shared.empty[threadIdx.x].init(kGroupThreads * along_n);
    publish_barriers();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp >= Memory::kWarps) {
    wgmma::limit_registers<Memory::kLoaderRegisters>();
    wait_for_last_kernel();
    constexpr int64_t kStepBytes = Memory::kTiles * Memory::kTileBytes;
    const int64_t first = int64_t(block_m) * gridDim.z * steps_of_part * kStepBytes;
    const Loader<Product, input_rows> loader(shared, arranged + first, work);
    if (threadIdx.x > 32 * Memory::kWarps) return;
    publish_to_bulk_copies();
    loader.load();
  } else {
    wgmma::take_registers<Memory::kRegisters>();
    const Thread<Product, input_rows> thread(product, shared, n, work);
    if (!product.input_is_newest) wait_for_last_kernel();
    thread.begin_copies();
    if (product.input_is_newest) wait_for_last_kernel();
    typename Thread<Product, input_rows>::Sums sums = {};
    const NamedBarrier multiplying(1, 32 * Memory::kWarps);
    thread.multiply(sums);
    multiplying.wait();  // the sums go where the steps were
    const int r = static_cast<int>(threadIdx.x) % (work.rows() / 4) * 4;
    const typename Product::template Columns<4> columns(product, n + r);
    thread.store(sums, work);
    const bool is_cluster = gridDim.z > 1;
    if (is_cluster) {
      wait_for_cluster();
    } else {
      multiplying.wait();
    }
    write<Product, input_rows>(product, shared, work, m, n, columns, static_cast<int>(blockIdx.z),
                               static_cast<int>(gridDim.z));
    if (is_cluster) end_with_cluster();
  }
}

// --- launchers -----------------------------------------------------------------------------------

// How the work is divided: among blocks of input_rows rows of the input and 64 * along_n of the
// weight, and parts of the depth.
struct Division {
  int input_rows, along_n;
  unsigned parts;
  int64_t steps_of_part;

  int64_t steps() const { return parts * steps_of_part; }
  int64_t along_m(int64_t m) const { return divide_up(m, input_rows); }
};

// The one whose busiest multiprocessor has the least work. Each takes a block at a time. As measured on
// an H200.
inline Division divide(int64_t m, int64_t n, int64_t k, int columns, int multiprocessors) {
  const int64_t steps = divide_up(k, few_rows::kStepThreads * columns);
  Division best{};
  double least = 0;
  const auto try_rows = [&](int input_rows, double time_of_step, int groups, int least_along_n) {
    for (int along_n = groups; along_n >= least_along_n; along_n /= 2) {
      for (unsigned parts = 1; parts <= kMaxParts; parts *= 2) {
        const int64_t blocks =
            divide_up(n, kGroupRows * along_n) * divide_up(m, input_rows) * parts;
        const int64_t rounds = divide_up(blocks, multiprocessors);
        // A block takes as long as some steps to begin and to end.
        constexpr double kEnds = 6;
        const double steps_of_group =
            static_cast<double>(divide_up(steps, parts * (groups / along_n)));
        const double time =
            static_cast<double>(rounds) * (steps_of_group + kEnds + parts) * time_of_step;
        if (least == 0 || time < least) {
          best = {input_rows, along_n, parts, divide_up(steps, parts)}, least = time;
        }
      }
    }
  };
  if (m <= 64) {
    try_rows(m <= 32 ? 32 : 64, 1, 4, 1);
  } else {
    try_rows(128, 1, 2, 1);
  }
  // NB: where both warpgroups do not multiply the same input, it takes too long to bring it.
  if (m > 128) try_rows(256, 1.37, 2, 2);
  return best;
}

// The bytes that the arranged input takes. `columns`: Product::kColumns.
inline int64_t arranged_bytes(int64_t m, int64_t n, int64_t k, int columns, int input_bytes,
                              int multiprocessors) {
  const Division division = divide(m, n, k, columns, multiprocessors);
  return division.along_m(m) * division.input_rows * division.steps() * few_rows::kStepThreads *
         columns * input_bytes;
}

template <typename Product, int input_rows>
void launch_tile(const Product& product, const Division& division, uint8_t* arranged,
                 cudaStream_t stream) {
  using Memory = Layout<Product, input_rows>;
  using Order = typename Product::Order;
  constexpr int kArrangers = 128;
  const auto steps = static_cast<uint32_t>(division.steps());
  const auto along_m = static_cast<unsigned>(division.along_m(product.m));
  const int64_t words = int64_t{along_m} * input_rows * steps * Order::kWords;
  const LaunchShape shape{dim3(static_cast<unsigned>(divide_up(words, kArrangers))), kArrangers};
  launch_waiting(&arrange_kernel<Order>, true, shape, stream, product.input_row(0), product.m,
                 static_cast<uint32_t>(product.k / Product::kColumns), steps, uint32_t{input_rows},
                 arranged);

  constexpr auto kernel = &warpgroup_rows_kernel<Product, input_rows>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{Memory::kBytes});
  const auto along_n = static_cast<unsigned>(divide_up(product.n, kGroupRows * division.along_n));
  const dim3 grid(along_m * along_n, 1, division.parts);
  launch_waiting(kernel, true, {grid, Memory::kThreads, Memory::kBytes, division.parts}, stream,
                 product, static_cast<const uint8_t*>(arranged),
                 static_cast<uint32_t>(division.steps_of_part), division.along_n, along_m);
}

// `arranged` has room for arranged_bytes().
template <typename Product>
void launch(const Product& product, void* arranged, int multiprocessors, cudaStream_t stream) {
  const Division division =
      divide(product.m, product.n, product.k, Product::kColumns, multiprocessors);
  auto* const to = static_cast<uint8_t*>(arranged);
  if (division.input_rows == 32) return launch_tile<Product, 32>(product, division, to, stream);
  if (division.input_rows == 64) return launch_tile<Product, 64>(product, division, to, stream);
  if (division.input_rows == 128) return launch_tile<Product, 128>(product, division, to, stream);
  launch_tile<Product, 256>(product, division, to, stream);
}

// Whether this was compiled for the current device, and is faster than few_rows.cuh, or than decoding
// the weight into memory first. As measured on an H200.
inline bool takes(int64_t m) { return m > 16 && m <= kMaxRows && wgmma::is_available(); }

}  // namespace baraquant::warpgroup_rows
