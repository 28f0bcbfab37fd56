// SPDX-License-Identifier: BSD-3-Clause
// Floating-point products of groups of rows, which the gradients of the grouped ops consist of.
// Group e has the rows offsets[e - 1] .. offsets[e] - 1 (from 0 for the first). Each function is an
// op of the dispatcher whose derivative consists of the others, so it can be traced, and
// differentiated any number of times.
#pragma once

#include "frame/named_op.h"

namespace baraquant::int8_mm {

// rows [T, A], matrices [E, A, B] -> [T, B]: each row times the matrix of its group, and 0 for rows
// after the last group.
inline constexpr NamedOp<"baraquant::_grouped_matmul",
                         at::Tensor(const at::Tensor& rows, const at::Tensor& matrices,
                                    const at::Tensor& offsets)>
    grouped_matmul;

// left [T, A], right [T, B] -> [E, A, B]: left^T @ right over the rows of each group.
inline constexpr NamedOp<"baraquant::_grouped_outer",
                         at::Tensor(const at::Tensor& left, const at::Tensor& right,
                                    const at::Tensor& offsets)>
    grouped_outer;

// rows [T, A] -> [E, A] of dtype: the sum over the rows of each group.
inline constexpr NamedOp<"baraquant::_grouped_sum",
                         at::Tensor(const at::Tensor& rows, const at::Tensor& offsets,
                                    at::ScalarType dtype)>
    grouped_sum;

// These ops below autograd, for CPU, CUDA and Meta.
at::Tensor grouped_matmul_device(const at::Tensor& rows, const at::Tensor& matrices,
                                 const at::Tensor& offsets);
at::Tensor grouped_outer_device(const at::Tensor& left, const at::Tensor& right,
                                const at::Tensor& offsets);
at::Tensor grouped_sum_device(const at::Tensor& rows, const at::Tensor& offsets,
                              at::ScalarType dtype);

}  // namespace baraquant::int8_mm
