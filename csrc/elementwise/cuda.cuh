// SPDX-License-Identifier: BSD-3-Clause
// Runs an elementwise operation (elementwise_ops.h) over a dense tensor on the GPU. The kernels are
// only just bound by memory: on an H100 a 16-bit input leaves about 30 instructions for an element,
// and half as many of those that compare, select or shift. So a thread takes a pack, 32 bytes of
// neighbours in memory, and prepares the grid of their scale (fast_math.h) once; if neighbours have
// different scales, it takes a column of narrow packs instead.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise/args.cuh"
#include "elementwise/packed.cuh"
#include "frame/cuda_plan.cuh"
#include "machine/pack.cuh"

namespace baraquant::affine {

// --- types ---------------------------------------------------------------------------------------

// Op over the same numbers that the scales were computed from, which OwnGrid does faster
// (fast_math.h).
template <typename Op>
struct OverOwnRange : Op {};
template <typename Op>
constexpr bool kIsOverOwnRange = false;
template <typename Op>
constexpr bool kIsOverOwnRange<OverOwnRange<Op>> = true;
// Whether OverOwnRange<Op> is compiled: an operation that memory bounds would gain nothing from it.
template <typename Op>
constexpr bool kGainsFromOwnRange = false;
template <typename T>
constexpr bool kGainsFromOwnRange<Quantize<T, uint8_t, Mask::kNone>> = sizeof(T) == 2;
template <typename T>
constexpr bool kGainsFromOwnRange<FakeQuantize<T, Mask::kNone>> = sizeof(T) == 2;

// NB: OwnGrid<false> also serves symmetric scales.
template <typename Op>
using GridOf = std::conditional_t<
    kIsOverOwnRange<Op>, FastestOwnGrid<typename Op::C, false>,
    std::conditional_t<Op::kRounds, FastestGrid<typename Op::C>, Grid<typename Op::C>>>;

template <typename Op, ScaleAccess access>
struct Geometry {
  static constexpr int kSecondSize =
      std::is_same_v<typename Op::Second, Nothing> ? 1 : sizeof(typename Op::Second);
  static constexpr int kWidest =
      std::max({static_cast<int>(sizeof(typename Op::First)), kSecondSize,
                static_cast<int>(sizeof(typename Op::Result))});
  // 32 bytes of the widest type; for kColumns 4 rows of a few columns, with grids in registers:
  // with a mask 16 bytes, which are whole bytes of the mask if a number has 16 bits, else 4 columns.
  static constexpr int kOfColumns =
      Op::kMask == Mask::kNone ? std::min(4, 16 / kWidest) : 16 / kWidest;
  static constexpr int kPack = access == ScaleAccess::kColumns ? kOfColumns : 32 / kWidest;
  static constexpr int kRows = access == ScaleAccess::kColumns ? 4 : 1;
  static_assert(kPack == 2 || kPack == 4 || kPack == 8 || kPack == 16);
};

// --- kernels -------------------------------------------------------------------------------------

// Returns the mask bits of a pack's elements, in the lowest bits. aligned: the mask lies at a
// multiple of 2 bytes.
template <int pack>
__device__ __forceinline__ unsigned read_bits(const uint8_t* mask, int64_t at, int count,
                                              bool aligned) {
  if (pack == 16 && aligned && count == 16) {
    return *reinterpret_cast<const uint16_t*>(mask + at / 8);
  }
  unsigned bits = mask[at / 8];
  if (pack < 8) return bits >> (at % 8);
  if (pack > 8 && count > 8) bits |= static_cast<unsigned>(mask[at / 8 + 1]) << 8;
  return bits;
}

// NB: all threads of the warp must call it, those past the end with count 0. If a byte covers
// several packs, they belong to neighbouring threads of a warp. aligned: as in read_bits.
template <int pack>
__device__ __forceinline__ void write_bits(unsigned bits, uint8_t* mask, int64_t at, int count,
                                           bool aligned = false) {
  if (pack == 16 && aligned && count == 16) {
    *reinterpret_cast<uint16_t*>(mask + at / 8) = static_cast<uint16_t>(bits);
    return;
  }
  bits &= (1u << count) - 1u;
#pragma unroll
  for (int width = pack; width < 8; width *= 2) {
    bits |= __shfl_down_sync(0xffffffffu, bits, width / pack) << width;
  }
  if (count > 0 && at % 8 == 0) mask[at / 8] = static_cast<uint8_t>(bits);
  if (count > 8) mask[at / 8 + 1] = static_cast<uint8_t>(bits >> 8);
}

template <typename Op, int pack>
struct Packs {
  Loaded<typename Op::First, pack> first;
  Loaded<typename Op::Second, pack> second;
  unsigned bits;

  __device__ __forceinline__ void load_from(const TransformArgs<Op>& args, int64_t at, int count,
                                            bool aligned) {
    bits = 0;
    if (count == 0) return;
    load(first, args.first, at, count, aligned);
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) {
      load(second, args.second, at, count, aligned);
    }
    if constexpr (Op::kMask == Mask::kRead) bits = read_bits<pack>(args.mask, at, count, aligned);
  }

  // What a switched-off operation does: the result is the input, and all elements are inside.
  __device__ __forceinline__ void pass_through(Pack<typename Op::Result, pack>& result) {
#pragma unroll
    for (int i = 0; i < pack; ++i) result.at[i] = first.get(i);
    bits = ~0u;
  }

  // Returns the result for element i. Its bit of the mask is read from or written to `bits`.
  template <typename G>
  __device__ __forceinline__ typename Op::Result apply(int i, const G& grid) {
    typename Op::Second other{};
    if constexpr (!std::is_same_v<typename Op::Second, Nothing>) other = second.get(i);
    bool bit = (bits >> i) & 1u;
    const typename Op::Result result = Op::apply(first.get(i), other, bit, grid);
    if constexpr (Op::kMask == Mask::kWrite) bits |= static_cast<unsigned>(bit) << i;
    return result;
  }
};

// Calls f with the grid of a scale: the fast one if it accepts the scale.
template <typename Op, typename F>
__device__ __forceinline__ void with_grid(const TransformArgs<Op>& args, typename Op::C scale,
                                          typename Op::C zero_point, const F& f) {
  using C = typename Op::C;
  using Fastest = GridOf<Op>;
  if constexpr (!std::is_same_v<Fastest, Grid<C>>) {
    if (args.fast_range && Fastest::accepts(scale, zero_point)) {
      return f(Fastest(scale, zero_point, args.q.range));
    }
  }
  f(Grid<C>(scale, zero_point, args.q.range));
}

// Computes a pack, which has one scale (kOne) or possibly several (kMixed).
template <typename Op, ScaleAccess access, int pack>
__device__ __forceinline__ void compute(const TransformArgs<Op>& args, int64_t begin, int count,
                                        Packs<Op, pack>& packs,
                                        Pack<typename Op::Result, pack>& result) {
  if constexpr (kIsSwitchable<Op>) {
    if (args.q.is_off()) return packs.pass_through(result);
  }
  const ScaleMap& map = args.q.map;
  const int64_t index = map.index(begin);
  if constexpr (access == ScaleAccess::kMixed) {
    // No run is shorter than a pack: if the ends have the same scale, so has all between them.
    const bool one = map.run() >= pack && map.step() == 0 && index == map.index(begin + count - 1);
    if (!one) {
#pragma unroll
      for (int i = 0; i < pack; ++i) {
        if (i >= count) continue;
        const int64_t own = map.index(begin + i);
        result.at[i] = packs.apply(
            i, Grid<typename Op::C>(args.q.scale_at(own), args.q.zero_point_at(own), args.q.range));
      }
      return;
    }
  }
  with_grid(args, args.q.scale_at(index), args.q.zero_point_at(index), [&](const auto& grid) {
#pragma unroll
    for (int i = 0; i < pack; ++i) result.at[i] = packs.apply(i, grid);
  });
}

template <typename Op, ScaleAccess access>
__global__ void __launch_bounds__(kThreads) transform_kernel(const TransformArgs<Op> args) {
  constexpr int kPack = Geometry<Op, access>::kPack;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  const int64_t left = args.numel - begin;
  const int count = left >= kPack ? kPack : static_cast<int>(max(left, int64_t(0)));
  Packs<Op, kPack> packs;
  packs.load_from(args, begin, count, args.aligned);
  if (count > 0) {
    Pack<typename Op::Result, kPack> result;
    compute<Op, access>(args, begin, count, packs, result);
    store(result, args.result, begin, count, args.aligned);
  }
  if constexpr (Op::kMask == Mask::kWrite) {
    write_bits<kPack>(packs.bits, args.mask, begin, count, args.aligned);
  }
}

// The grids of a pack's columns, which serve all the rows that a thread takes.
template <typename Op>
struct ColumnGrids {
  using G = GridOf<Op>;
  static constexpr int kPack = Geometry<Op, ScaleAccess::kColumns>::kPack;
  G grids[kPack];
  bool fast = true;

  __device__ __forceinline__ ColumnGrids(const TransformArgs<Op>& args, int64_t first_scale) {
    typename Op::C scales[kPack], zero_points[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      scales[i] = args.q.scale_at(first_scale + i);
      zero_points[i] = args.q.zero_point_at(first_scale + i);
    }
    fast = args.fast_range;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      grids[i] = G(scales[i], zero_points[i], args.q.range);
      fast = fast && G::accepts(scales[i], zero_points[i]);
    }
  }
};

// Computes kRows packs that lie below one another.
template <typename Op, int pack, int rows>
__device__ __forceinline__ void compute_columns(const TransformArgs<Op>& args,
                                                const ColumnGrids<Op>& columns,
                                                Packs<Op, pack> (&packs)[rows],
                                                Pack<typename Op::Result, pack> (&results)[rows]) {
  if constexpr (kIsSwitchable<Op>) {
    if (args.q.is_off()) {
#pragma unroll
      for (int r = 0; r < rows; ++r) packs[r].pass_through(results[r]);
      return;
    }
  }
  const auto apply_to_columns = [&](const auto& grid_of) {
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const auto grid = grid_of(columns.grids[i]);
#pragma unroll
      for (int r = 0; r < rows; ++r) results[r].at[i] = packs[r].apply(i, grid);
    }
  };
  using C = typename Op::C;
  if (columns.fast) {
    apply_to_columns([](const auto& grid) { return grid; });
  } else {
    apply_to_columns(
        [&](const auto& grid) { return Grid<C>(grid.scale(), grid.zero_point(), args.q.range); });
  }
}

template <typename Op>
__global__ void __launch_bounds__(kThreads) transform_columns_kernel(const TransformArgs<Op> args) {
  using G = Geometry<Op, ScaleAccess::kColumns>;
  constexpr int kPack = G::kPack, kRows = G::kRows;
  const ColumnPlace place = find_columns<kPack, kRows>(args.columns);
  const ColumnGrids<Op> columns(args, place.first_scale);
  for (int slab = 0; slab < args.columns.slabs; ++slab) {
    const int64_t begin = place.begin + slab * kRows * place.next;
    Packs<Op, kPack> packs[kRows];
    Pack<typename Op::Result, kPack> results[kRows];
    const auto count_of = [&](int r) { return begin + r * place.next < place.end ? kPack : 0; };
    const auto load_rows = [&](bool whole) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        packs[r].load_from(args, begin + r * place.next, whole ? kPack : count_of(r),
                           whole || args.aligned);
      }
    };
    const auto store_rows = [&](bool whole) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int count = whole ? kPack : count_of(r);
        if (count == 0) continue;
        store(results[r], args.result, begin + r * place.next, count, whole || args.aligned);
      }
    };
    // NB: one branch around all rows; a branch between two would wait for the load before it.
    const bool whole = args.aligned && count_of(kRows - 1) > 0;
    whole ? load_rows(true) : load_rows(false);
    compute_columns(args, columns, packs, results);
    whole ? store_rows(true) : store_rows(false);
    if constexpr (Op::kMask == Mask::kWrite) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        write_bits<kPack>(packs[r].bits, args.mask, begin + r * place.next, count_of(r));
      }
    }
  }
}

// --- launchers -----------------------------------------------------------------------------------

template <typename Op, ScaleAccess access>
void launch_transform(const TransformArgs<Op>& args, int64_t threads, cudaStream_t stream) {
  if (only_planned([&] {
        const bool one = access == ScaleAccess::kOne;
        return cuda_plan<typename Op::C>(
            std::string(Op::kName) + (one ? "_one_scale" : "_mixed_scales"),
            std::to_string(kThreads) + "x" + std::to_string(Geometry<Op, access>::kPack));
      })) {
    return;
  }
  const int64_t blocks = (threads + kThreads - 1) / kThreads;
  transform_kernel<Op, access><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

template <typename Op>
void launch_columns(TransformArgs<Op>& args, cudaStream_t stream) {
  using G = Geometry<Op, ScaleAccess::kColumns>;
  args.columns = ColumnArgs(args.q.map, G::kPack, G::kRows);
  if (only_planned([&] {
        return cuda_plan<typename Op::C>(
            std::string(Op::kName) + "_columns",
            std::to_string(args.columns.slabs * G::kRows) + "x" + std::to_string(G::kPack));
      })) {
    return;
  }
  const int64_t blocks = (args.columns.threads() + kThreads - 1) / kThreads;
  transform_columns_kernel<Op><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

// Chooses the access by how the scales lie. A byte of a mask is written by neighbours in a warp, so
// kColumns needs rows of whole bytes.
template <typename Op>
ScaleAccess access_to(const ScaleMap& map) {
  const int whole = Op::kMask == Mask::kNone ? Geometry<Op, ScaleAccess::kColumns>::kPack : 8;
  if (map.step() == 1 && map.inner.value % whole == 0) return ScaleAccess::kColumns;
  const bool one = map.step() == 0 && map.fits_packs(Geometry<Op, ScaleAccess::kOne>::kPack);
  return one ? ScaleAccess::kOne : ScaleAccess::kMixed;
}

template <typename Op>
void transform_cuda(const typename Op::First* first, const typename Op::Second* second,
                    typename Op::Result* result, uint8_t* mask, int64_t numel,
                    const Qparams<typename Op::C>& q, cudaStream_t stream) {
  using G = Geometry<Op, ScaleAccess::kOne>;
  const ScaleAccess access = access_to<Op>(q.map);
  if constexpr (PackedOp<Op>::kExists) {
    if (runs_packed<Op>(first, result, numel, q.map)) {
      return launch_packed<Op>({first, result, numel, q, {}}, stream);
    }
  }
  if constexpr (kGainsFromOwnRange<Op>) {
    if (q.own_range && access != ScaleAccess::kMixed) {
      return transform_cuda<OverOwnRange<Op>>(first, second, result, mask, numel, q, stream);
    }
  }
  TransformArgs<Op> args{first, second, result, mask, numel, q, false, false, {}};
  args.fast_range = fastest_accepts_range(q.range);
  args.aligned = is_aligned(first, G::kPack * sizeof(typename Op::First)) &&
                 is_aligned(result, G::kPack * sizeof(typename Op::Result)) &&
                 (second == nullptr || is_aligned(second, G::kPack * G::kSecondSize)) &&
                 (mask == nullptr || is_aligned(mask, 2));
  if (access == ScaleAccess::kColumns) return launch_columns(args, stream);
  const int64_t threads = (numel + G::kPack - 1) / G::kPack;
  if constexpr (!kIsOverOwnRange<Op>) {
    if (access == ScaleAccess::kMixed) {
      return launch_transform<Op, ScaleAccess::kMixed>(args, threads, stream);
    }
  }
  launch_transform<Op, ScaleAccess::kOne>(args, threads, stream);
}

}  // namespace baraquant::affine
