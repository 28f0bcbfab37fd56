// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of four-bit weights, run before any kernel on every device and under tracing.
#pragma once

#include "int4/core_ops.h"

namespace baraquant::int4 {

// Checks group_size, and the factors and zero points of a weight of [rows, columns] on the device of
// the tensor `like`, whose name is like_name.
void check_groups(const char* op, const Groups& groups, const c10::SymInt& rows,
                  const c10::SymInt& columns, const at::Tensor& like, const char* like_name);
void check_groups_dispatchable(const char* op, const Groups& groups);

// Checks packed numbers for `columns` columns; `what` says where these come from.
void check_packed(const char* op, const char* name, const at::Tensor& packed,
                  const c10::SymInt& columns, const char* what);

void check_choose(const ChooseArgs& args);
void check_quantize(const QuantizeArgs& args);
void check_expand(const ExpandArgs& args);
void check_pack(const at::Tensor& integers);

}  // namespace baraquant::int4
