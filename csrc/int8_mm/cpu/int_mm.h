// SPDX-License-Identifier: BSD-3-Clause
// The product by at::_int_mm: PyTorch computes the sums, which oneDNN does with AMX where the machine
// has it. They are exact, so the bits are those of blocked.h.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "int8_mm/operands.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm {

// For fewer rows of the input, vectors are fast enough: oneDNN repacks the weight in each call.
constexpr int64_t kMinRows = 64;
// NB: where K is 1, at::_int_mm gives wrong sums (torch 2.13).
constexpr int64_t kMinDepth = 64;

// Whether tests want every product that at::_int_mm can compute to be computed so, on any machine.
inline std::atomic<bool> int_mm_is_forced{false};

// The sums [m, n].
inline at::Tensor int_mm(const int8_t* input, const int8_t* weight, int64_t m, int64_t n,
                         int64_t k) {
  const at::Tensor rows = at::from_blob(const_cast<int8_t*>(input), {m, k}, at::kChar);
  const at::Tensor columns = at::from_blob(const_cast<int8_t*>(weight), {n, k}, at::kChar);
  return at::_int_mm(rows, columns.t());
}

// Whether at::_int_mm gives exact sums on this machine, also of more bits than a float has. Without
// VNNI and AMX, oneDNN's products of bytes may saturate.
inline bool int_mm_is_exact() {
  static const bool is_exact = [] {
    constexpr int64_t m = kMinRows, n = 48, k = 1111;
    std::vector<int8_t> input(m * k), weight(n * k);
    for (int64_t i = 0; i < m * k; ++i) input[i] = static_cast<int8_t>(127 - i % 5 * (i / k % 3));
    for (int64_t i = 0; i < n * k; ++i) weight[i] = static_cast<int8_t>(i / k % 2 ? -128 : 127);
    const at::Tensor sums = int_mm(input.data(), weight.data(), m, n, k);
    for (int64_t i = 0; i < m * n; ++i) {
      int32_t sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += input[i / n * k + j] * weight[i % n * k + j];
      if (sums.const_data_ptr<int32_t>()[i] != sum) return false;
    }
    return true;
  }();
  return is_exact;
}

// NB: at::_int_mm takes no uint8, and without oneDNN it is a plain loop.
inline bool takes_int_mm(const Operands& f, CpuIsa isa) {
  const bool is_fast = isa == CpuIsa::kAmx && f.m >= kMinRows;
  return (is_fast || int_mm_is_forced.load(std::memory_order_relaxed)) && !f.is_unsigned &&
         !f.is_packed() && f.k >= kMinDepth && at::globalContext().userEnabledMkldnn() &&
         int_mm_is_exact();
}

}  // namespace baraquant::int8_mm
