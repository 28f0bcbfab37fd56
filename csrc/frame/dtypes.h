// SPDX-License-Identifier: BSD-3-Clause
// From a tensor's dtype to the kernels' storage types: f(Type<T>{}).
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <utility>

#include "machine/float_types.h"

namespace baraquant {

template <typename T>
struct Type {
  using type = T;
};

inline bool is_supported_floating(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf ||
         dtype == c10::kBFloat16;
}

// The dtype in which the arithmetic for an input of this dtype is done (numerics contract).
inline c10::ScalarType compute_dtype(c10::ScalarType dtype) {
  return dtype == c10::kDouble ? c10::kDouble : c10::kFloat;
}

// The smallest and the largest integer such that dtype represents every integer between them.
inline std::pair<int64_t, int64_t> exact_integers(c10::ScalarType dtype) {
  const auto power = [](int exponent) {
    const int64_t limit = int64_t(1) << exponent;
    return std::pair<int64_t, int64_t>(-limit, limit);
  };
  switch (dtype) {
    case c10::kChar:
      return {-128, 127};
    case c10::kByte:
      return {0, 255};
    case c10::kDouble:
      return power(53);
    case c10::kFloat:
      return power(24);
    case c10::kHalf:
      return power(11);
    default:  // bfloat16
      return power(8);
  }
}

template <typename F>
void with_floating_type(c10::ScalarType dtype, const F& f) {
  switch (dtype) {
    case c10::kFloat:
      return f(Type<float>{});
    case c10::kDouble:
      return f(Type<double>{});
    case c10::kHalf:
      return f(Type<Float16>{});
    case c10::kBFloat16:
      return f(Type<BFloat16>{});
    default:
      TORCH_INTERNAL_ASSERT(false, "baraquant: unchecked dtype ", dtype);
  }
}

}  // namespace baraquant
