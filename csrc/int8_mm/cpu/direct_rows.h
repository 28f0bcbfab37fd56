// SPDX-License-Identifier: BSD-3-Clause
// A few rows of the input for weights of four bits that are multiplied as they lie (int4/cpu/dot.h),
// without torch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "int4/cpu/dot.h"
#include "int8_mm/cpu/scratch.h"
#include "int8_mm/math.h"
#include "int8_mm/operands.h"
#include "machine/cpu_isa.h"

namespace baraquant::int8_mm {

// The input as the product with four bits reads it; empty if that does not multiply them as they lie.
class DirectRows {
 public:
  DirectRows(const Operands& f, CpuIsa isa, bool is_streamed)
      : count_(is_streamed && int4::can_dot(isa, f.packed, f.m) ? f.m : 0),
        has_ones_(count_ > 0 && f.wants_weight_sums),
        groups_(count_ > 0 ? f.packed.groups() : 0),
        columns_(f.k),
        is_unsigned_(f.is_unsigned),
        values_((count_ + has_ones_) * f.k),
        sums_((count_ + has_ones_) * groups_) {
    for (int64_t m = 0; m < count_; ++m) {
      const auto* const row = static_cast<const uint8_t*>(f.input) + m * columns_;
      if (is_unsigned_) {
        arrange(row, f.packed, m);
      } else {
        arrange(reinterpret_cast<const int8_t*>(row), f.packed, m);
      }
    }
    if (!has_ones_) return;
    const Scratch<uint8_t> ones(columns_);
    std::fill_n(ones.data(), columns_, uint8_t{1});
    arrange(ones.data(), f.packed, count_);
  }
  bool is_empty() const { return count_ == 0; }

  // Multiplies row n of the weight, and sums it if that is wanted. The sums are those of an input to
  // which `offset` was added. Returns false if the row has to be expanded.
  bool multiply(const int4::Packed& packed, int64_t n, int32_t offset, int32_t* sums,
                int64_t stride, int32_t* weight_sum) const {
    const int4::DotInput input{values_.data(), sums_.data(), count_ + has_ones_, columns_,
                               groups_,        is_unsigned_, has_ones_};
    if (!int4::dot(packed, n, input, sums, stride, weight_sum)) return false;
    if (!has_ones_ || offset == 0) return true;
    for (int64_t m = 0; m < count_; ++m) {
      sums[m * stride] = shift(sums[m * stride], -offset, *weight_sum);
    }
    return true;
  }

 private:
  template <typename T>
  void arrange(const T* row, const int4::Packed& packed, int64_t m) {
    int4::arrange(row, packed, values_.data() + m * columns_, sums_.data() + m * groups_);
  }

  int64_t count_;
  bool has_ones_;
  int64_t groups_, columns_;
  bool is_unsigned_;
  Scratch<uint8_t> values_;
  Scratch<int32_t> sums_;
};

}  // namespace baraquant::int8_mm
