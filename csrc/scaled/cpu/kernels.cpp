// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the scaled family. A pass finds the scale of a row, and a second one quantizes
// the row while it is still in a cache. Columns are handled in strips, whose transpose is put
// together in a tile.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "frame/cpu_plan.h"
#include "machine/cpu_isa.h"
#include "scaled/launch.h"

namespace baraquant::scaled {
namespace {

constexpr int64_t kUnit = 16384;  // the fewest elements for a task of a thread
constexpr int64_t kBlock = 1024;  // elements that are scaled together
constexpr int64_t kTile = 64;     // rows and columns of a tile; a multiple of kOctet

// The factors or scales of neighbours: one for each, or one for all.
template <typename C>
struct Each {
  const C* values;
  BARAQUANT_HD C at(int64_t i) const { return values[i]; }
};
template <typename C>
struct One {
  C value;
  BARAQUANT_HD C at(int64_t) const { return value; }
};

// The key of the greatest |x * factor|.
template <typename T, typename F>
BARAQUANT_HD Key<ComputeType<T>> magnitude(const T* __restrict x, const F& factor, int64_t count) {
  using C = ComputeType<T>;
  Key<C> max = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Key<C> key = range::magnitude_key(scaled(x[i], factor.at(i)));
    max = key > max ? key : max;
  }
  return max;
}

// Raises the maxima of neighbouring columns, kept as keys.
template <typename T, typename C>
BARAQUANT_HD void raise_maxima(Key<C>* __restrict maxima, const T* __restrict x, C factor,
                               int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Key<C> key = range::magnitude_key(scaled(x[i], factor));
    maxima[i] = key > maxima[i] ? key : maxima[i];
  }
}

// Adds a row to the sums of its columns.
template <typename T, typename C>
BARAQUANT_HD void add_row(C* __restrict sums, const T* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += to_compute<C>(x[i]);
}

// Writes the random bits of the elements from `number` on.
BARAQUANT_HD void fill_bits(uint32_t* bits, const Stream& stream, int64_t number, int64_t count) {
  for (int64_t i = 0; i < count;) {
    const int begin = static_cast<int>((number + i) % kOctet);
    const Octet octet = random_octet(stream, static_cast<uint64_t>(number + i) / kOctet);
    for (int k = begin; k < kOctet && i < count; ++k, ++i) bits[i] = octet.bits(k);
  }
}

// Quantizes at most kBlock neighbours, the first of which is element `number`.
template <typename T, typename F, typename S>
BARAQUANT_HD void quantize(const T* __restrict x, const F& factor, const S& scale, int64_t count,
                           const Random& random, int64_t number, int8_t* __restrict q) {
  using C = ComputeType<T>;
  if (random.state == nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      q[i] = round_nearest<C>(scaled(x[i], factor.at(i)), scale.at(i));
    }
    return;
  }
  uint32_t bits[kBlock];
  fill_bits(bits, Stream::of(random), number, count);
  for (int64_t i = 0; i < count; ++i) {
    q[i] = round_stochastic<C>(scaled(x[i], factor.at(i)), scale.at(i), bits[i]);
  }
}

// Merges keys into maxima that several threads share.
template <typename C>
void merge_maxima(C* maxima, const std::vector<Key<C>>& keys, std::mutex& mutex) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] > bit_cast<Key<C>>(maxima[i])) maxima[i] = bit_cast<C>(keys[i]);
  }
}

template <typename T>
BARAQUANT_HD void quantize_row(const RowsParams<T>& args, int64_t m) {
  using C = ComputeType<T>;
  const Matrix<T>& x = args.input;
  const T* row = x.data + x.number(m, 0);
  const C scale = scale_of<C>(magnitude(row, Each<C>{args.factor}, x.columns));
  args.scale[m] = scale;
  for (int64_t n = 0; n < x.columns; n += kBlock) {
    quantize(row + n, Each<C>{args.factor + n}, One<C>{scale}, std::min(kBlock, x.columns - n),
             args.random, x.number(m, n), args.values + m * x.columns + n);
  }
}

struct Cpu {
  template <typename C>
  static bool only_planned_as(const char* name, const char* /*tile*/ = "") {
    return only_planned([&] { return cpu_plan<C>(name, "1"); });
  }

  template <typename T>
  static void rows(const RowsParams<T>& args) {
    using C = ComputeType<T>;
    const Matrix<T>& x = args.input;
    std::mutex mutex;
    at::parallel_for(0, x.rows, grain(x.columns), [&](int64_t from, int64_t to) {
      std::vector<Key<C>> maxima(args.maxima ? static_cast<size_t>(x.columns) : 0, 0);
      run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
        for (int64_t m = from; m < to; ++m) {
          quantize_row(args, m);
          if (args.maxima == nullptr) continue;
          raise_maxima<T, C>(maxima.data(), x.data + x.number(m, 0), args.row_factor[m], x.columns);
        }
      });
      if (args.maxima) merge_maxima(args.maxima, maxima, mutex);
    });
    if (args.sums) sums(x, args.sums);
  }

  template <typename T>
  static void sums(const Matrix<T>& x, ComputeType<T>* sums) {
    using C = ComputeType<T>;
    const int64_t pieces = count_pieces(x.rows);
    at::parallel_for(0, pieces, grain(kPieceRows * x.columns), [&](int64_t from, int64_t to) {
      run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
        for (int64_t piece = from; piece < to; ++piece) {
          C* const of_piece = sums + piece * x.columns;
          std::fill(of_piece, of_piece + x.columns, C(0));
          const int64_t end = std::min((piece + 1) * kPieceRows, x.rows);
          for (int64_t m = piece * kPieceRows; m < end; ++m) {
            add_row<T, C>(of_piece, x.data + x.number(m, 0), x.columns);
          }
        }
      });
    });
  }

  template <typename C>
  static void total(const C* pieces, int64_t count, int64_t columns, C* result) {
    at::parallel_for(0, columns, grain(count), [&](int64_t from, int64_t to) {
      for (int64_t n = from; n < to; ++n) {
        double lanes[kSumLanes] = {};
        for (int64_t piece = 0; piece < count; ++piece) {
          lanes[piece % kSumLanes] += pieces[piece * columns + n];
        }
        result[n] = static_cast<C>(sum_of_lanes(lanes, 1));
      }
    });
  }

  template <typename T>
  static void maxima(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima) {
    using C = ComputeType<T>;
    std::mutex mutex;
    at::parallel_for(0, x.rows, grain(x.columns), [&](int64_t from, int64_t to) {
      std::vector<Key<C>> keys(static_cast<size_t>(x.columns), 0);
      run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
        for (int64_t m = from; m < to; ++m) {
          raise_maxima<T, C>(keys.data(), x.data + x.number(m, 0), factor[m], x.columns);
        }
      });
      merge_maxima(maxima, keys, mutex);
    });
  }

  template <typename T>
  static void columns(const ColumnsParams<T>& args) {
    const Matrix<T>& x = args.input;
    for_each_strip(x.rows, x.columns,
                   [&](int64_t n, int64_t width) { quantize_strip(args, n, width); });
  }

  template <typename T>
  static void given(const GivenParams<T>& args) {
    using C = ComputeType<T>;
    const Matrix<T>& x = args.input;
    for_each_strip(x.rows, x.columns, [&](int64_t n, int64_t width) {
      int8_t tile[kTile][kTile];
      for (int64_t m = 0; m < x.rows; m += kTile) {
        const int64_t height = std::min(kTile, x.rows - m);
        run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
          for (int64_t i = 0; i < height; ++i) {
            const T* const row = x.data + x.number(m + i, n);
            const C scale = args.scale[m + i];
            for (int64_t j = 0; j < width; ++j) {
              tile[i][j] = round_nearest(to_compute<C>(row[j]), scale, args.range);
            }
          }
        });
        write_transposed(tile, height, width, args.values + n * x.rows + m, x.rows);
      }
    });
  }

  static void transpose(const at::Tensor& values, const at::Tensor& result) {
    if (only_planned_as<int32_t>("transpose_int8")) return;
    const int64_t rows = values.size(0), columns = values.size(1);
    const auto* from = static_cast<const int8_t*>(values.const_data_ptr());
    auto* to = static_cast<int8_t*>(result.mutable_data_ptr());
    for_each_strip(rows, columns, [&](int64_t n, int64_t width) {
      for (int64_t m = 0; m < rows; m += kTile) {
        const int64_t height = std::min(kTile, rows - m);
        for (int64_t j = 0; j < width; ++j) {
          for (int64_t i = 0; i < height; ++i) {
            to[(n + j) * rows + m + i] = from[(m + i) * columns + n + j];
          }
        }
      }
    });
  }

  // The CPU's generator has no offset: each draw takes a new seed, and the calls that share a state
  // count from 0.
  static void draw(const at::Tensor& state, int64_t) {
    if (only_planned_as<int32_t>("draw_random")) return;
    const at::Generator& generator = at::detail::getDefaultCPUGenerator();
    auto* own = at::check_generator<at::CPUGeneratorImpl>(generator);
    auto* numbers = static_cast<int64_t*>(state.mutable_data_ptr());
    const std::lock_guard<std::mutex> lock(own->mutex_);
    numbers[0] = static_cast<int64_t>(own->random64());
    numbers[1] = 0;
  }

 private:
  static int64_t grain(int64_t elements) { return std::max<int64_t>(kUnit / elements, 1); }

  // Calls of(n, width) for strips of at most kTile columns.
  template <typename Of>
  static void for_each_strip(int64_t rows, int64_t columns, const Of& of) {
    const int64_t strips = (columns + kTile - 1) / kTile;
    at::parallel_for(0, strips, grain(rows * kTile), [&](int64_t from, int64_t to) {
      for (int64_t n = from * kTile; n < std::min(to * kTile, columns); n += kTile) {
        of(n, std::min(kTile, columns - n));
      }
    });
  }

  static void write_transposed(const int8_t (&tile)[kTile][kTile], int64_t height, int64_t width,
                               int8_t* to, int64_t stride) {
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = 0; i < height; ++i) to[j * stride + i] = tile[i][j];
    }
  }

  // Quantizes `width` columns from n on, a tile at a time.
  template <typename T>
  static void quantize_strip(const ColumnsParams<T>& args, int64_t n, int64_t width) {
    using C = ComputeType<T>;
    const Matrix<T>& x = args.input;
    C scale[kTile];
    for (int64_t j = 0; j < width; ++j) {
      scale[j] = args.scale[n + j] = scale_of<C>(bit_cast<Key<C>>(args.maxima[n + j]));
    }
    int32_t sums[kTile] = {};
    int8_t tile[kTile][kTile];
    for (int64_t m = 0; m < x.rows; m += kTile) {
      const int64_t height = std::min(kTile, x.rows - m);
      run_on_isa(cpu_isa(), [&]() __attribute__((always_inline)) {
        for (int64_t i = 0; i < height; ++i) {
          const int64_t number = x.number(m + i, n);
          quantize(x.data + number, One<C>{args.factor[m + i]}, Each<C>{scale}, width, args.random,
                   number, tile[i]);
          if (args.zero_point == nullptr) continue;
          for (int64_t j = 0; j < width; ++j) sums[j] += tile[i][j] * args.zero_point[m + i];
        }
      });
      write_transposed(tile, height, width, args.values + n * x.rows + m, x.rows);
    }
    if (args.zero_point == nullptr) return;
    for (int64_t j = 0; j < width; ++j) args.sums[n + j] += sums[j];
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  using L = Launch<Cpu>;
  static const Kernels kernels{&L::rows,    &L::sums,  &L::total,       &L::maxima,
                               &L::columns, &L::given, &Cpu::transpose, &Cpu::draw};
  return kernels;
}

}  // namespace baraquant::scaled
