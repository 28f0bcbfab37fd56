// SPDX-License-Identifier: BSD-3-Clause
// Packed weights below the dispatcher: the products of the integer matrix family call it.
#pragma once

#include "int4/core_ops.h"
#include "int4/launch.h"

namespace baraquant::int4 {

// A packed weight [rows, columns] from checked tensors; copies what is not contiguous.
PackedWeight packed_weight(const at::Tensor& packed, const Groups& groups, int64_t columns);

// The int8 weight [rows, columns] that a packed one stands for.
at::Tensor expanded(const PackedWeight& packed);

}  // namespace baraquant::int4
