// SPDX-License-Identifier: BSD-3-Clause
// Floating-point products of groups of rows, which the gradients of the grouped ops consist of.
// Group e has the rows offsets[e - 1] .. offsets[e] - 1 (from 0 for the first). Each function is an
// op of the dispatcher whose derivative consists of the others, so it can be traced, and
// differentiated any number of times.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::int8_mm {

// rows [T, A], matrices [E, A, B] -> [T, B]: each row times the matrix of its group, and 0 for rows
// after the last group.
at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& offsets);

// left [T, A], right [T, B] -> [E, A, B]: left^T @ right over the rows of each group.
at::Tensor grouped_outer(const at::Tensor& left, const at::Tensor& right,
                         const at::Tensor& offsets);

// rows [T, A] -> [E, A] of dtype: the sum over the rows of each group.
at::Tensor grouped_sum(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype);

// These ops below autograd, for CPU, CUDA and Meta.
decltype(grouped_matmul) grouped_matmul_device;
decltype(grouped_outer) grouped_outer_device;
decltype(grouped_sum) grouped_sum_device;

}  // namespace baraquant::int8_mm
