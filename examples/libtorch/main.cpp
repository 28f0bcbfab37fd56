// SPDX-License-Identifier: BSD-3-Clause
// baraquant without Python: a fake quantize per channel, forward and backward, and a linear layer
// of integers, from plain C++.
// The ops are called through PyTorch's dispatcher, by name. Exit code 1 if a number is wrong.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <baraquant/frame/build_info.h>

#include <cstdint>
#include <iostream>
#include <optional>

namespace {

using FakeQuantizePerChannel = at::Tensor(const at::Tensor& input, const at::Tensor& scale,
                                          const std::optional<at::Tensor>& zero_point, int64_t axis,
                                          int64_t quant_min, int64_t quant_max,
                                          std::optional<bool> save_mask);

using Int8Linear = at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& input_scale, const at::Tensor& weight_scale,
                              const std::optional<at::Tensor>& bias,
                              const std::optional<at::Tensor>& input_zero_point,
                              const std::optional<at::Tensor>& weight_sum, at::ScalarType dtype);

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

bool check(const char* what, const at::Tensor& got, const at::Tensor& expected) {
  const bool right = at::equal(got, expected);
  std::cout << what << (right ? ": as expected\n" : ": WRONG\n") << got << "\n";
  return right;
}

// Two tokens with scales 0.5 and 0.25 and the zero point 1, two outputs with scales 1 and 2.
bool check_int8_linear() {
  const auto int8_linear = find<Int8Linear>("baraquant::int8_linear");
  const at::Tensor input = at::tensor({3, 127, -3, 1}).reshape({2, 2}).to(at::kChar);
  const at::Tensor weight = at::tensor({1, 0, -128, 2}).reshape({2, 2}).to(at::kChar);
  const at::Tensor y = int8_linear.call(
      input, weight, at::tensor({0.5f, 0.25f}), at::tensor({1.0f, 2.0f}), at::tensor({0.0f, 1.0f}),
      at::tensor({1, 1}), /*weight_sum=*/std::nullopt, at::kFloat);
  return check("int8_linear", y, at::tensor({1.0f, -3.0f, -1.0f, 257.0f}).reshape({2, 2}));
}

}  // namespace

int main() {
  std::cout << "baraquant " << baraquant::build_info().version << ", built for torch "
            << baraquant::build_info().torch_version << "\n";

  const auto fake_quantize = find<FakeQuantizePerChannel>("baraquant::fake_quantize_per_channel");

  // Two channels in int4. With its scale 0.5 the first one's integers are -8 (clamped), -2 (the
  // tie -1.5), 0 (the tie 0.5) and 3; with 0.25 the second one's are 7 (clamped), 7, -8 and 1.
  at::Tensor x = at::tensor({-9.0f, -0.75f, 0.25f, 1.5f, 2.0f, 1.75f, -2.0f, 0.3f}).reshape({2, 4});
  x.requires_grad_();
  const at::Tensor scale = at::tensor({0.5f, 0.25f});
  const at::Tensor y = fake_quantize.call(x, scale, std::nullopt, /*axis=*/0, /*quant_min=*/-8,
                                          /*quant_max=*/7, /*save_mask=*/std::nullopt);
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
