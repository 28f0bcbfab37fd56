// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of int8_mm/math.h as a single node of CUTLASS's epilogues, so that all vectors are
// requested from memory at once. CUTLASS's own nodes would wait for one vector after the other,
// which takes a tenth of the time of a small product.
//
// A tile has two sides (rows and columns, or columns and rows if it is swapped). The numbers of the
// first side stay in registers, since a thread has few of its rows; those of the second side lie in
// shared memory, for all threads.
#pragma once

#include <utility>

#include "cute/tensor.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"
#include "int8_mm/cuda/scale_vectors.cuh"

namespace baraquant::int8_mm::hopper {

namespace fusion = cutlass::epilogue::fusion;

// The arguments of the node. begins has the first row of each group of a grouped product.
struct RescaleArguments {
  Rescaling<float> operands;
  int m = 0, n = 0, groups = 1;
  const int32_t* begins = nullptr;
};

template <class Output, class TileShape, bool swapped, bool grouped = false>
class Rescale : public fusion::Sm90VisitorImpl<> {
  using First = cute::conditional_t<swapped, ColumnScales<float>, RowScales<float>>;
  using Second = cute::conditional_t<swapped, RowScales<float>, ColumnScales<float>>;
  static constexpr int kSecond = cute::size<1>(TileShape{});

  // --- device code: from numbers to words and back -----------------------------------------------

  // The numbers of a row or a column as words: an integer, a scale and, for a column, a bias.
  template <class F>
  static constexpr int kWords = cute::is_same_v<F, RowScales<float>> ? 2 : 3;

  CUTLASS_DEVICE static void to_words(const RowScales<float>& f, uint32_t (&words)[2]) {
    words[0] = bit_cast<uint32_t>(f.zero_point);
    words[1] = bit_cast<uint32_t>(f.input_scale);
  }
  CUTLASS_DEVICE static void to_words(const ColumnScales<float>& f, uint32_t (&words)[3]) {
    words[0] = bit_cast<uint32_t>(f.weight_sum);
    words[1] = bit_cast<uint32_t>(f.weight_scale);
    words[2] = bit_cast<uint32_t>(f.bias);
  }
  CUTLASS_DEVICE static float rescaled(bool wants_sum, int32_t sum, const uint32_t (&row)[2],
                                       const uint32_t (&column)[3]) {
    const int32_t acc = shift(sum, bit_cast<int32_t>(row[0]), bit_cast<int32_t>(column[0]));
    if constexpr (cute::is_same_v<Output, float>) {
      if (wants_sum) return bit_cast<float>(acc);  // see output_of()
    }
    return rescale(acc, bit_cast<float>(column[1]), bit_cast<float>(row[1]),
                   bit_cast<float>(column[2]));
  }

  // Brings a vector into the L2 cache while the tiles are multiplied: each thread of the grid
  // fetches at most one line. Longer vectors are not fully prefetched; their product takes long
  // enough to hide that.
  template <typename V>
  CUTLASS_DEVICE static void prefetch(const V* vector, int size) {
    constexpr int kLine = 128 / sizeof(V);
    const int block =
        static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
    const int64_t at = (int64_t(block) * blockDim.x + threadIdx.x) * kLine;
    if (vector != nullptr && at < size) asm volatile("prefetch.global.L2 [%0];" ::"l"(vector + at));
  }

  // Words of the same kind lie consecutively.
  using Words = uint32_t[kWords<Second>][kSecond];

  // --- interface of a CUTLASS node ---------------------------------------------------------------

 public:
  struct SharedStorage {
    alignas(16) Words second;
  };
  using Arguments = RescaleArguments;
  using Params = RescaleArguments;

  template <class Problem>
  static constexpr Params to_underlying_arguments(const Problem&, const Arguments& a, void*) {
    return a;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Rescale() {}
  // Every thread of the grid calls it when the kernel begins.
  CUTLASS_HOST_DEVICE Rescale(const Params& params, const SharedStorage& storage)
      : params_(&params), second_(const_cast<Words*>(&storage.second)) {
#if defined(__CUDA_ARCH__)
    const Rescaling<float>& f = params.operands;
    prefetch(f.weight_scale, params.groups * params.n);
    prefetch(f.bias, params.groups * params.n);
    prefetch(f.weight_sum, params.groups * params.n);
    prefetch(f.input_scale.data, f.input_scale.stride == 0 ? 1 : params.m);
    prefetch(f.zero_point.data, f.zero_point.stride == 0 ? 1 : params.m);
#endif
  }

  // --- callbacks for a tile ----------------------------------------------------------------------

  // What a thread does for one tile. Rows is a tensor that gives the place of the thread's elements
  // on the first side; Shared has their first words of the second side. Both have stride 0 along
  // the other side, so that each number is kept once.
  template <int threads, class Rows, class Shared>
  class ConsumerStoreCallbacks : public fusion::EmptyConsumerStoreCallbacks {
    using Registers = decltype(cute::make_tensor_like<uint32_t>(std::declval<const Rows&>()));
    using Subtile =
        decltype(cute::make_tensor_like<uint32_t>(cute::take<0, 3>(std::declval<const Shared&>())));

    // Those of the tile's group; without groups, a reference to those of the kernel.
    cute::conditional_t<grouped, Rescaling<float>, const Rescaling<float>&> factors_;
    Words& words_;
    Rows rows_;
    Shared shared_;
    int thread_, size_first_, begin_second_, size_second_;
    Registers first_[kWords<First>];
    Subtile second_[kWords<Second>];

   public:
    CUTLASS_DEVICE ConsumerStoreCallbacks(const Rescaling<float>& operands, Words& words,
                                          const Rows& rows, const Shared& shared, int thread,
                                          int size_first, int begin_second, int size_second)
        : factors_(operands),
          words_(words),
          rows_(rows),
          shared_(shared),
          thread_(thread),
          size_first_(size_first),
          begin_second_(begin_second),
          size_second_(size_second) {}

    // Everything is loaded before any of it is used. Elements beyond the matrix are not written at
    // the end, so any number will do for them.
    CUTLASS_DEVICE void begin() {
      constexpr int kShare = (kSecond + threads - 1) / threads;
      Second second[kShare];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kShare; ++i) {
        const int at = begin_second_ + thread_ + i * threads;
        second[i] = Second(factors_, at < size_second_ ? at : 0);
      }
      const auto rows = cute::filter_zeros(rows_);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size(rows); ++i) {
        const int at = rows(i);
        uint32_t words[kWords<First>];
        to_words(First(factors_, at < size_first_ ? at : 0), words);
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords<First>; ++w) cute::filter_zeros(first_[w])(i) = words[w];
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kShare; ++i) {
        const int at = thread_ + i * threads;
        if (kSecond % threads != 0 && at >= kSecond) break;
        uint32_t words[kWords<Second>];
        to_words(second[i], words);
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords<Second>; ++w) words_[w][at] = words[w];
      }
    }

    CUTLASS_DEVICE bool begin_sync_needed() const { return true; }

    CUTLASS_DEVICE void begin_loop(int epi_m, int epi_n) {
      if (epi_m != 0) return;  // the subtiles of a column come consecutively and share its words
      CUTLASS_PRAGMA_UNROLL
      for (int w = 0; w < kWords<Second>; ++w) {
        const auto all = cute::make_tensor(shared_.data() + w * kSecond, shared_.layout());
        const auto from = cute::filter_zeros(all(cute::_, cute::_, cute::_, epi_m, epi_n));
        auto loaded = cute::make_tensor_like<uint32_t>(from);
        cute::copy_aligned(from, loaded);
        auto to = cute::filter_zeros(second_[w]);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < cute::size(loaded); ++i) to(i) = loaded(i);
      }
    }

    template <int size>
    CUTLASS_DEVICE cutlass::Array<Output, size> visit(const cutlass::Array<int32_t, size>& sums,
                                                      int epi_v, int epi_m, int epi_n) {
      const bool wants_sums = factors_.wants_sums();
      cutlass::Array<float, size> y;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < size; ++i) {
        uint32_t first[kWords<First>], second[kWords<Second>];
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords<First>; ++w) {
          first[w] = first_[w](cute::_, cute::_, cute::_, epi_m, epi_n)(epi_v * size + i);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int w = 0; w < kWords<Second>; ++w) second[w] = second_[w](epi_v * size + i);
        if constexpr (swapped) {
          y[i] = rescaled(wants_sums, sums[i], second, first);
        } else {
          y[i] = rescaled(wants_sums, sums[i], first, second);
        }
      }
      return cutlass::NumericArrayConverter<Output, float, size>{}(y);
    }
  };

  template <bool of_source, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::ConsumerStoreArgs<Args...>& args) {
    using namespace cute;
    const auto [m, n, k, l] = args.tile_coord_mnkl;
    const auto problem = take<0, 3>(args.problem_shape_mnkl);
    const auto every_row = make_tensor(
        counting_iterator<int>(0), make_layout(make_shape(get<0>(problem), get<1>(problem), _1{}),
                                               make_stride(_1{}, _0{}, _0{})));
    const auto rows = fusion::sm90_partition_for_epilogue<of_source>(
        every_row, args.tile_shape_mnk, args.tile_coord_mnkl, args.epi_tile, args.tiled_copy,
        args.thread_idx);
    const auto words = make_tensor(make_smem_ptr(&(*second_)[0][0]), take<0, 2>(TileShape{}),
                                   make_stride(_0{}, _1{}));
    const auto shared = fusion::sm90_partition_for_epilogue<of_source>(
        words, args.epi_tile, args.tiled_copy, args.thread_idx);
    constexpr int threads = decltype(size(args.tiled_copy))::value;
    const auto operands = [&]() -> decltype(auto) {
      if constexpr (grouped) {
        Rescaling<float> own = params_->operands;
        own.choose_group(l, params_->n);
        own.begin_at(params_->begins[l]);
        return own;
      } else {
        return (params_->operands);
      }
    };
    return ConsumerStoreCallbacks<threads, remove_cvref_t<decltype(rows)>,
                                  remove_cvref_t<decltype(shared)>>(
        operands(), *second_, rows, shared, args.thread_idx, static_cast<int>(get<0>(problem)),
        static_cast<int>(n) * kSecond, static_cast<int>(get<1>(problem)));
  }

 private:
  const Params* params_ = nullptr;
  Words* second_ = nullptr;
};

}  // namespace baraquant::int8_mm::hopper
