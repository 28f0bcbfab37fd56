// SPDX-License-Identifier: BSD-3-Clause
// The gradients of qat_linear as products of integers. The scales of the weight and of the input
// are folded into dy, so that dy alone is rounded and the integers of the forward pass are used
// again as they are (a weight that stays in memory is rounded to them again). With the symmetric
// int8 rounding q() of a row, whose scale is sd:
//   dx[m, k] = sd[m] * sum over n of q(dy[m, n] * sw[n]) * qw[n, k]
//   dw[n, k] = sd[n] * sum over m of q(dy[m, n] * sx[m]) * (qx[m, k] - zx[m])
//   db[n]    = sum over m of dy[m, n]      in the order of scaled/math.h
// The sums of integers are exact in int32. A sum of more terms than int32 holds is cut into blocks
// of equal length (a multiple of 16, the last one may be shorter), each rounded with scales of its
// own; the blocks are added in the compute type, in order.
#pragma once

#include <tuple>

#include "frame/named_op.h"
#include "granularity/arguments.h"

namespace baraquant::int8_mm {

// What is kept of the forward pass. Without weight dx is not computed, without qinput dw is not,
// and without bias_dtype db is not.
struct IntegerBackwardArgs {
  OptionalTensor qinput, input_scale, input_zero_point;  // [..., K], [..., 1], [..., 1]
  // [N, K], [N]. The weight's integers, or itself, of the compute type of the gradient.
  OptionalTensor weight, weight_scale;
  OptionalTensor random;  // of draw_random(count=2): dx uses the first state, dw the second
  int64_t weight_quant_min = -128, weight_quant_max = 127;
  std::optional<at::ScalarType> bias_dtype;  // of db

  static constexpr int kFields = 9;
  static constexpr const char* kSchema =
      "Tensor? qinput, Tensor? input_scale, Tensor? input_zero_point, Tensor? weight, "
      "Tensor? weight_scale, Tensor? random, int weight_quant_min=-128, int weight_quant_max=127, "
      "ScalarType? bias_dtype=None";
};

// dx and dw, in the dtype of grad, and db; an empty tensor for one that is not computed.
using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

inline constexpr NamedOp<"baraquant::_integer_backward",
                         Gradients(const at::Tensor& grad, const IntegerBackwardArgs& args)>
    integer_backward;

// The op below autograd, for CPU, CUDA and Meta.
Gradients integer_backward_device(const at::Tensor& grad, const IntegerBackwardArgs& args);

}  // namespace baraquant::int8_mm
