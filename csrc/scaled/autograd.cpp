// SPDX-License-Identifier: BSD-3-Clause
// The scaled family under autograd: integers, and scales that come from data, are constants to it.
// NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.
#include <torch/library.h>

#include "frame/checks.h"
#include "scaled/checks.h"

namespace baraquant::scaled {
namespace {

template <const auto& op>
TensorPair quantize_autograd(const ScaledArgs& args) {
  check_all_dispatchable(op.kName, args);
  return op.below_autograd(args);
}

at::Tensor transpose_int8_autograd(const at::Tensor& input) {
  check_dispatchable("baraquant::transpose_int8", "input", input);
  return transpose_int8.below_autograd(input);
}

at::Tensor draw_random_autograd(const at::Tensor& like, int64_t count) {
  check_dispatchable("baraquant::draw_random", "like", like);
  return draw_random.below_autograd(like, count);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("scaled_quantize_per_token", kernel_of<&quantize_autograd<scaled_quantize_per_token>>);
  m.impl("scaled_quantize_transposed", kernel_of<&quantize_autograd<scaled_quantize_transposed>>);
  m.impl("transpose_int8", kernel_of<&transpose_int8_autograd>);
  m.impl("draw_random", kernel_of<&draw_random_autograd>);
}

}  // namespace baraquant::scaled
