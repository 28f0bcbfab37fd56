// SPDX-License-Identifier: BSD-3-Clause
// Tests that rows of 16-bit numbers become float, and float rows 16-bit numbers, with the bits that
// float_types.h gives one number, on every instruction set of this machine and at every length.
#include "checks.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "machine/cpu_isa.h"
#include "machine/float_types.h"
#include "machine/half_rows.h"

namespace {

using namespace baraquant;

template <typename T>
void expect(const char* what, CpuIsa isa, T found, T expected) {
  if (!checks::fails(checks::same(found, expected))) return;
  std::printf("%s on %s: %g, not %g\n", what, cpu_isa_name(isa),
              static_cast<double>(to_compute<float>(found)),
              static_cast<double>(to_compute<float>(expected)));
}

template <typename T>
void check_widen(CpuIsa isa) {
  std::vector<T> all(1 << 16);
  for (uint32_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  std::vector<float> found(all.size());
  convert_row(isa, all.data(), static_cast<int64_t>(all.size()), found.data());
  for (size_t i = 0; i < all.size(); ++i) {
    expect("widen", isa, found[i], to_compute<float>(all[i]));
  }
}

// Every 16-bit number, the ties between it and the next, their neighbours, and numbers between.
template <typename T>
void check_narrow(CpuIsa isa) {
  std::vector<float> numbers;
  for (uint32_t i = 0; i + 1 < 1 << 16; ++i) {
    const float low = to_compute<float>(T{static_cast<uint16_t>(i)});
    const float high = to_compute<float>(T{static_cast<uint16_t>(i + 1)});
    const float tie = low / 2 + high / 2;
    for (const float x : {low, tie, std::nextafter(tie, low), std::nextafter(tie, high)}) {
      numbers.push_back(x);
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 40503) {  // all exponents
    numbers.push_back(bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  std::vector<T> found(numbers.size());
  convert_row(isa, numbers.data(), static_cast<int64_t>(numbers.size()), found.data());
  for (size_t i = 0; i < numbers.size(); ++i) {
    expect("narrow", isa, found[i], from_compute<T>(numbers[i]));
  }
}

// What lies behind a row is left alone.
template <typename T>
void check_lengths(CpuIsa isa) {
  for (int64_t count = 0; count <= 70; ++count) {
    std::vector<T> halves(static_cast<size_t>(count) + 1, from_compute<T>(1.5f));
    std::vector<float> floats(halves.size(), -3.0f);
    convert_row(isa, halves.data(), count, floats.data());
    for (int64_t i = 0; i <= count; ++i) {
      expect("widen", isa, floats[static_cast<size_t>(i)], i < count ? 1.5f : -3.0f);
    }
    floats.assign(floats.size(), 0.25f);
    convert_row(isa, floats.data(), count, halves.data());
    for (int64_t i = 0; i <= count; ++i) {
      const T expected = from_compute<T>(i < count ? 0.25f : 1.5f);
      expect("narrow", isa, halves[static_cast<size_t>(i)], expected);
    }
  }
}

template <typename T>
void check_type(CpuIsa isa) {
  check_widen<T>(isa);
  check_narrow<T>(isa);
  check_lengths<T>(isa);
}

}  // namespace

int main() {
  checks::for_each_isa([](CpuIsa isa) {
    check_type<Float16>(isa);
    check_type<BFloat16>(isa);
  });
  return checks::result();
}
