// SPDX-License-Identifier: BSD-3-Clause
// Arithmetic of a tensor's sizes, which may be symbolic, and up to 2^63 - 1 in an empty tensor.
#pragma once

#include <c10/core/SymInt.h>

#include "machine/integers.h"

namespace baraquant {

// How many pieces of a size cover all of it. A symbolic size keeps the form that exported programs
// write too.
inline c10::SymInt divide_up(const c10::SymInt& a, const c10::SymInt& b) {
  const auto all = a.maybe_as_int(), piece = b.maybe_as_int();
  if (all && piece) return divide_size_up(*all, *piece);
  return (a + (b - 1)) / b;
}

}  // namespace baraquant
