// SPDX-License-Identifier: BSD-3-Clause
// Integers of two to seven bits, stored as a string of bits.
//
// A tensor is one stream, in the order of its elements: integer i takes the bits i * bits to
// (i + 1) * bits - 1, its low bit first, and bit j of the stream is bit j % 8 of byte j / 8. The
// unused bits of the last byte are 0.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::files {

// Pack int8 integers in [-2^(bits-1), 2^(bits-1) - 1], each as two's complement of `bits` bits:
// uint8 [bytes], on the CPU.
at::Tensor pack(const at::Tensor& integers, int64_t bits);

// Undo pack(): int8 integers of the given shape. `packed` has as many bytes as they take.
at::Tensor unpack(const at::Tensor& packed, int64_t bits, c10::IntArrayRef shape);

// Check that the bits behind the last integer are 0, so that each tensor has one encoding.
//
// Throws c10::ValueError.
void check_spare_bits(const at::Tensor& packed, int64_t bits, int64_t numel);

}  // namespace baraquant::files
