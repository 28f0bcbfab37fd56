// SPDX-License-Identifier: BSD-3-Clause
// baraquant without Python: a fake quantize per channel, forward and backward, and a linear layer
// of integers, from plain C++.
// Exit code 1 if a number is wrong.
#include <ATen/ATen.h>
#include <baraquant/build_info.h>
#include <baraquant/ops.h>

#include <iostream>

namespace {

bool check(const char* what, const at::Tensor& got, const at::Tensor& expected) {
  const bool right = at::equal(got, expected);
  std::cout << what << (right ? ": as expected\n" : ": WRONG\n") << got << "\n";
  return right;
}

// Two tokens with scales 0.5 and 0.25 and the zero point 1, two outputs with scales 1 and 2.
bool check_int8_linear() {
  const at::Tensor input = at::tensor({3, 127, -3, 1}).reshape({2, 2}).to(at::kChar);
  const at::Tensor weight = at::tensor({1, 0, -128, 2}).reshape({2, 2}).to(at::kChar);
  const at::Tensor y = baraquant::int8_linear(
      input, weight, /*input_scale=*/at::tensor({0.5f, 0.25f}),
      /*weight_scale=*/at::tensor({1.0f, 2.0f}), /*bias=*/at::tensor({0.0f, 1.0f}),
      /*input_zero_point=*/at::tensor({1, 1}));
  return check("int8_linear", y, at::tensor({1.0f, -3.0f, -1.0f, 257.0f}).reshape({2, 2}));
}

}  // namespace

int main() {
  std::cout << "baraquant " << baraquant::build_info().version << ", built for torch "
            << baraquant::build_info().torch_version << "\n";

  // Two channels in int4. With its scale 0.5 the first one's integers are -8 (clamped), -2 (the
  // tie -1.5), 0 (the tie 0.5) and 3; with 0.25 the second one's are 7 (clamped), 7, -8 and 1.
  at::Tensor x = at::tensor({-9.0f, -0.75f, 0.25f, 1.5f, 2.0f, 1.75f, -2.0f, 0.3f}).reshape({2, 4});
  x.requires_grad_();
  const at::Tensor scale = at::tensor({0.5f, 0.25f});
  const at::Tensor y = baraquant::fake_quantize_per_channel(
      x, scale, /*zero_point=*/std::nullopt, /*axis=*/0, /*quant_min=*/-8, /*quant_max=*/7);
  const at::Tensor weight = at::arange(1, 9, at::kFloat).reshape({2, 4});
  (y * weight).sum().backward();

  // The gradient passes where nothing was clamped.
  const at::Tensor expected =
      at::tensor({-4.0f, -1.0f, 0.0f, 1.5f, 1.75f, 1.75f, -2.0f, 0.25f}).reshape({2, 4});
  const at::Tensor expected_grad =
      at::tensor({0.0f, 2.0f, 3.0f, 4.0f, 0.0f, 6.0f, 7.0f, 8.0f}).reshape({2, 4});
  const bool forward = check("forward", y.detach(), expected);
  const bool backward = check("backward", x.grad(), expected_grad);
  return forward && backward && check_int8_linear() ? 0 : 1;
}
