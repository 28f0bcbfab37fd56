// SPDX-License-Identifier: BSD-3-Clause
// Tests the CPU product of every instruction set of this machine against sums in int64: random and
// extreme numbers, odd shapes, any division of the work, every kind of scale and zero point. The
// operands end just before a page that cannot be read.
#include "checks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "int8_mm/cpu/blocked.h"
#include "int8_mm/cpu/select.h"

namespace {

using namespace baraquant;
using namespace baraquant::int8_mm;
using checks::random_bits;
using checks::random_integer;

// Has `size` bytes that end just before a page that cannot be read or written.
class Guarded {
 public:
  explicit Guarded(int64_t size) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t whole = (size + page - 1) / page * page;
    length_ = static_cast<size_t>(whole + page);
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + whole, static_cast<size_t>(page), PROT_NONE);
    data_ = base_ + whole - size;
  }
  ~Guarded() { munmap(base_, length_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* base_;
  uint8_t* data_;
  size_t length_;
};

enum class Fill { kRandom, kLowest, kHighest, kAlternating, kSparse, kCount };

void fill(uint8_t* bytes, int64_t count, Fill kind, bool is_unsigned) {
  const uint8_t lowest = is_unsigned ? 0 : 0x80, highest = is_unsigned ? 0xff : 0x7f;
  for (int64_t i = 0; i < count; ++i) {
    switch (kind) {
      case Fill::kLowest:
        bytes[i] = lowest;
        break;
      case Fill::kHighest:
        bytes[i] = highest;
        break;
      case Fill::kAlternating:
        bytes[i] = i % 2 ? lowest : highest;
        break;
      case Fill::kSparse:
        bytes[i] = random_bits() % 16 ? 0 : lowest;
        break;
      default:
        bytes[i] = static_cast<uint8_t>(random_bits());
    }
  }
}

struct Shape {
  int64_t m, n, k;
};

// The operands of a product, and its expected sums before rescaling.
struct Problem {
  Shape shape;
  bool is_unsigned;
  Guarded input, weight;
  std::vector<int64_t> products;  // [m, n]

  Problem(Shape s, bool unsigned_input, Fill input_fill, Fill weight_fill)
      : shape(s), is_unsigned(unsigned_input), input(s.m * s.k), weight(s.n * s.k) {
    fill(input.data(), s.m * s.k, input_fill, is_unsigned);
    fill(weight.data(), s.n * s.k, weight_fill, false);
    for (int64_t m = 0; m < s.m; ++m) {
      for (int64_t n = 0; n < s.n; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < s.k; ++k) {
          const uint8_t a = input.data()[m * s.k + k];
          const int64_t value = is_unsigned ? int64_t(a) : int64_t(static_cast<int8_t>(a));
          sum += value * static_cast<int8_t>(weight.data()[n * s.k + k]);
        }
        products.push_back(sum);
      }
    }
  }
  Operands operands() const {
    return {shape.m,      shape.n,     shape.k,
            input.data(), is_unsigned, reinterpret_cast<const int8_t*>(weight.data())};
  }
};

template <typename C>
C random_number(bool ordinary) {
  const C specials[] = {std::numeric_limits<C>::quiet_NaN(),
                        std::numeric_limits<C>::infinity(),
                        -std::numeric_limits<C>::infinity(),
                        std::numeric_limits<C>::max(),
                        std::numeric_limits<C>::denorm_min(),
                        C(0),
                        C(-0.0)};
  if (!ordinary && random_bits() % 4 == 0) return specials[random_bits() % 7];
  return std::ldexp(C(random_integer(-(1 << 20), 1 << 20)),
                    static_cast<int>(random_integer(-30, 0)));
}

// A Rescaling and the memory that it points to.
template <typename C>
struct Parameters {
  std::vector<C> input_scale, weight_scale, bias;
  std::vector<int32_t> zero_point, weight_sum;
  Rescaling<C> rescaling;

  explicit Parameters(Shape s) {
    const bool ordinary = random_bits() % 2;
    const auto numbers = [&](int64_t count) {
      std::vector<C> v(static_cast<size_t>(count));
      for (C& x : v) x = random_number<C>(ordinary);
      return v;
    };
    const auto integers = [&](int64_t count, int64_t most) {
      std::vector<int32_t> v(static_cast<size_t>(count));
      for (int32_t& x : v) x = static_cast<int32_t>(random_integer(-most - 1, most));
      return v;
    };
    input_scale = numbers(s.m);
    weight_scale = numbers(s.n);
    bias = numbers(s.n);
    rescaling.weight_scale = weight_scale.data();
    if (random_bits() % 2) rescaling.bias = bias.data();
    rescaling.input_scale = of_rows(input_scale);
    if (random_bits() % 2 == 0) return;
    const int64_t most = random_bits() % 4 ? 255 : std::numeric_limits<int32_t>::max();
    zero_point = integers(s.m, most);
    weight_sum = integers(s.n, most == 255 ? 1 << 23 : most);
    rescaling.has_zero_point = true;
    rescaling.zero_point = of_rows(zero_point);
    rescaling.weight_sum = weight_sum.data();
  }

  template <typename T>
  static OfRows<T> of_rows(const std::vector<T>& values) {
    const int64_t kind = random_integer(0, 2);
    return {kind == 2 ? nullptr : values.data(), kind, values[0]};
  }
};

template <typename T>
void check_output(const Problem& problem, const Parameters<ComputeType<T>>& p, CpuIsa isa,
                  int threads) {
  using C = ComputeType<T>;
  const Shape s = problem.shape;
  const Rescaling<C>& r = p.rescaling;
  const Guarded memory(s.m * s.n * static_cast<int64_t>(sizeof(T)));
  T* const output = reinterpret_cast<T*>(memory.data());
  const auto parallel = [&](int64_t count, int64_t grain, const auto& task) {  // any cut is right
    for (int64_t begin = 0, end; begin < count; begin = end) {
      end = threads == 1 ? count : std::min(count, begin + random_integer(1, 2 * grain));
      task(begin, end);
    }
  };
  const Operands operands = problem.operands();
  const CpuKernel& kernel = kernel_of(isa);
  product<T>(operands, r, output, isa, kernel, Blocks(operands, kernel, threads), parallel);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    const int64_t m = i / s.n, n = i % s.n;
    // Arithmetic in 64 bits, of which int32 keeps the low half.
    uint64_t sum = static_cast<uint64_t>(problem.products[static_cast<size_t>(i)]);
    if (r.weight_sum) {
      sum -= static_cast<uint64_t>(int64_t(r.zero_point.at(m)) * int64_t(r.weight_sum[n]));
    }
    const int32_t acc = static_cast<int32_t>(static_cast<uint32_t>(sum));
    const C product_of_scales = static_cast<C>(acc) * r.weight_scale[n];
    const C y = r.bias ? std::fma(product_of_scales, r.input_scale.at(m), r.bias[n])
                       : product_of_scales * r.input_scale.at(m);
    if (!checks::fails(checks::same(output[i], from_compute<T>(y)))) continue;
    std::printf("%s, %lld x %lld x %lld%s, %d threads: row %lld, column %lld: %g, not %g\n",
                cpu_isa_name(isa), static_cast<long long>(s.m), static_cast<long long>(s.n),
                static_cast<long long>(s.k), problem.is_unsigned ? " unsigned" : "", threads,
                static_cast<long long>(m), static_cast<long long>(n),
                static_cast<double>(to_compute<C>(output[i])), static_cast<double>(y));
  }
}

template <typename T>
void check_type(const Problem& problem, const std::vector<CpuIsa>& isas) {
  const Parameters<ComputeType<T>> parameters(problem.shape);
  for (const CpuIsa isa : isas) {
    for (const int threads : {1, 2, 64}) check_output<T>(problem, parameters, isa, threads);
  }
}

void check_sums(const Problem& problem, const std::vector<CpuIsa>& isas) {
  Parameters<double> plain(problem.shape);  // scales of 1, no zero point: the output is the sums
  plain.weight_scale.assign(plain.weight_scale.size(), 1.0);
  plain.rescaling.input_scale = {nullptr, 0, 1.0};
  plain.rescaling.has_zero_point = false;
  plain.rescaling.weight_sum = nullptr;
  plain.rescaling.bias = nullptr;
  for (const CpuIsa isa : isas) {
    for (const int threads : {1, 3}) check_output<double>(problem, plain, isa, threads);
  }
}

void check_shape(Shape shape, const std::vector<CpuIsa>& isas) {
  const bool is_unsigned = random_bits() % 2;
  const auto fills = static_cast<int64_t>(Fill::kCount) - 1;
  const Problem problem(shape, is_unsigned, static_cast<Fill>(random_integer(0, fills)),
                        static_cast<Fill>(random_integer(0, fills)));
  check_sums(problem, isas);
  switch (random_bits() % 4) {
    case 0:
      return check_type<float>(problem, isas);
    case 1:
      return check_type<double>(problem, isas);
    case 2:
      return check_type<Float16>(problem, isas);
    default:
      return check_type<BFloat16>(problem, isas);
  }
}

void check_shapes(const std::vector<CpuIsa>& isas) {
  // Few rows of the input are streamed, more are packed.
  for (int64_t m = 1; m <= 60; ++m) check_shape({m, 37, 67}, isas);
  for (const int64_t from : {1, 33}) {
    for (int64_t n = 1; n <= 70; ++n) check_shape({random_integer(from, from + 13), n, 131}, isas);
    for (int64_t k = 0; k <= 140; ++k) check_shape({random_integer(from, from + 13), 35, k}, isas);
  }
  for (int i = 0; i < 150; ++i) {
    const int64_t m = random_integer(1, 40), n = random_integer(1, 150);
    check_shape({m, n, random_integer(0, 400000 / (m * n))}, isas);
  }
  // Shapes that exceed every block: of rows, of columns, of the depth.
  check_shape({kRowBlock + 5, 9, 33}, isas);
  check_shape({2 * kRowBlock, 1, 7}, isas);
  // As many rows as each thread takes whole blocks of, of uneven heights.
  for (const int64_t m : {2 * kRowsOfThread, 3 * kRowsOfThread + 1, 5 * kRowsOfThread + 3}) {
    check_shape({m, 21, 40}, isas);
  }
  check_shape({3, 3 * kColumnBlock + 1, 65}, isas);
  check_shape({30, kColumnBlock + 7, 64}, isas);
  for (const int64_t m : {1, 4, 5, 13, 37}) check_shape({m, 5, 3 * kDepthBlock + 77}, isas);
}

// At the greatest depths the sums reach the ends of int32.
void check_extremes(const std::vector<CpuIsa>& isas) {
  const Fill fills[] = {Fill::kLowest, Fill::kHighest, Fill::kAlternating};
  for (const int64_t m : {2, 7, 35}) {
    for (const Fill a : fills) {
      for (const Fill w : fills) {
        check_sums(Problem({m, 3, kMaxDepth}, false, a, w), isas);
        check_sums(Problem({m, 3, kMaxShiftedDepth}, true, a, w), isas);
      }
    }
  }
}

}  // namespace

int main() {
  std::vector<CpuIsa> isas;
  checks::for_each_isa([&](CpuIsa isa) { isas.push_back(isa); });
  check_shapes(isas);
  check_extremes(isas);
  return checks::result();
}
