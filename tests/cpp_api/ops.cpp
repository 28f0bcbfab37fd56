// SPDX-License-Identifier: BSD-3-Clause
// <baraquant/ops.h> as a LibTorch program uses it. Prints a line for each result and for each error,
// with the same call in Python, which test_ops.py compares.
#include <ATen/ATen.h>
#include <baraquant/ops.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>
#include <string>

#include "errors.h"

namespace {

// Numbers from 0 on, in steps of 0.37, as a tensor of that shape.
at::Tensor numbers(at::IntArrayRef sizes, double begin = -4.0) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat) * 0.37 + begin).view(sizes);
}

// The values as exact text, whatever the dtype.
void show(const std::string& name, const at::Tensor& tensor) {
  std::cout << "result\t" << name << '\t' << toString(tensor.scalar_type());
  const at::Tensor values = tensor.to(at::kDouble).contiguous().view(-1);
  for (int64_t i = 0; i < values.numel(); ++i) {
    std::cout << '\t' << std::hexfloat << values[i].item<double>();
  }
  std::cout << '\n';
}

const at::Tensor kX = numbers({4, 8}), kScale = at::tensor({0.5f});
const at::Tensor kScales = numbers({4}, 0.25), kTokens = numbers({4, 1}, 0.25);
const at::Tensor kGroups = numbers({4, 2}, 0.25);
const at::Tensor kZeros = at::tensor({-3, 0, 2, 5}, at::kInt);

void affine() {
  using namespace baraquant;
  show("quantize_per_tensor(X, SCALE, None)", quantize_per_tensor(kX, kScale, std::nullopt));
  show("quantize_per_tensor(X, 0.5, 3)", quantize_per_tensor(kX, 0.5, 3));
  show("quantize_per_tensor(X, SCALE, 3, -8, 7)", quantize_per_tensor(kX, kScale, 3, -8, 7));
  show("quantize_per_channel(X, SCALES, ZEROS + 128, 0, 0, 255, dtype=torch.uint8)",
       quantize_per_channel(kX, kScales, kZeros + 128, 0, 0, 255, at::kByte));
  const at::Tensor q = quantize_per_channel(kX, kScales, kZeros, 0);
  show("CHANNELS", q);
  show("dequantize_per_channel(CHANNELS, SCALES, ZEROS, 0)",
       dequantize_per_channel(q, kScales, kZeros, 0));
  show("fake_quantize_per_channel(X, SCALES, ZEROS, 0, -8, 7)",
       fake_quantize_per_channel(kX, kScales, kZeros, 0, -8, 7));
  show("fake_quantize_per_token(X, TOKENS, None)",
       fake_quantize_per_token(kX, kTokens, std::nullopt));
  show("fake_quantize_per_group(X, GROUPS, None, 4, -1, -8, 7)",
       fake_quantize_per_group(kX, kGroups, std::nullopt, 4, -1, -8, 7));
}

void gradients() {
  const at::Tensor x = kX.clone().requires_grad_();
  const at::Tensor scales = kScales.clone().requires_grad_();
  const at::Tensor y = baraquant::fake_quantize_per_channel(x, scales, kZeros, 0, -8, 7);
  const auto found = torch::autograd::grad({y.sum()}, {x, scales});
  show("gradients()[0]", found[0]);
  show("gradients()[1]", found[1]);
  const at::Tensor dy = at::ones_like(kX);
  const auto [dx, ds, dz] = baraquant::backward::fake_quantize_per_channel_backward_qparams(
      dy, kX, kScales, kZeros, 0, -8, 7);
  show("backward_qparams()[0]", dx);
  show("backward_qparams()[1]", ds);
  show("backward_qparams()[2]", dz);
}

void range() {
  const auto [scale, zero_point] = baraquant::choose_qparams_per_channel(kX, 0, -8, 7, false);
  show("choose_qparams_per_channel(X, 0, -8, 7, symmetric=False)[0]", scale);
  show("choose_qparams_per_channel(X, 0, -8, 7, symmetric=False)[1]", zero_point);
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("ROWS", q);
  show("ROW_SCALES", s);
  show("dynamic_fake_quantize_per_group(X, 4)", baraquant::dynamic_fake_quantize_per_group(kX, 4));
  const at::Tensor low = at::tensor({INFINITY}), high = at::tensor({-INFINITY});
  baraquant::observe_min_max_(kX, low, high);
  show("X.min()", low);
  show("X.max()", high);
}

void products() {
  const auto [w, sw, zw] = baraquant::dynamic_range_quantize_per_channel(numbers({3, 8}, -2), 0);
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("int8_linear(ROWS, W, ROW_SCALES, SW)", baraquant::int8_linear(q, w, s, sw));
  const at::Tensor sums = baraquant::int8_product(q, w);
  show("int8_product(ROWS, W)", sums);
  show("rescale_product(int8_product(ROWS, W), ROW_SCALES, SW)",
       baraquant::rescale_product(sums, s, sw));
  const at::Tensor line = q.reshape({1, 2, -1});
  const at::Tensor kernels = w.reshape({3, 2, 4});
  show("int8_conv(LINE, KERNELS, SCALE, SW)", baraquant::int8_conv(line, kernels, kScale, sw));
  show(
      "int8_conv(LINE, KERNELS, SCALE, SW, BIAS, input_zero_point=torch.tensor(3), stride=2, "
      "padding=3, dtype=torch.float16)",
      baraquant::int8_conv(line, kernels, kScale, sw, numbers({3}), at::scalar_tensor(3, at::kInt),
                           std::nullopt, 2, 3, at::IntArrayRef{1}, 1, at::kHalf));
  show("quantized_linear(X, W, SW)", baraquant::quantized_linear(kX, w, sw));
  show("smoothquant_linear(ROWS, W, SW, 0.5)", baraquant::smoothquant_linear(q, w, sw, 0.5));
  show("static_quantized_linear(X, W, SW, SCALE)",
       baraquant::static_quantized_linear(kX, w, sw, kScale));
  show("qat_linear(X, WEIGHT, BIAS)", baraquant::qat_linear(kX, numbers({3, 8}, -2), numbers({3})));
}

void four_bits() {
  const at::Tensor w = numbers({3, 8}, -12);
  const auto [scale, factor, zero_point] = baraquant::choose_int4_qparams(w, 4, false);
  show("INT4[0]", scale);
  show("INT4[1]", factor);
  show("INT4[2]", zero_point);
  const at::Tensor packed = baraquant::quantize_int4(w, scale, factor, 4, zero_point);
  show("PACKED", packed);
  const at::Tensor w8 = baraquant::expand_int4(packed, factor, 4, 8, zero_point);
  show("expand_int4(PACKED, INT4[1], 4, 8, group_zero_point=INT4[2])", w8);
  show("pack_int4(expand_int4(PACKED, INT4[1], 4, 8, group_zero_point=INT4[2]))",
       baraquant::pack_int4(w8));
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("int4_linear(ROWS, PACKED, ROW_SCALES, *INT4[:2], 4)",
       baraquant::int4_linear(q, packed, s, scale, factor, 4));
  show("quantized_int4_linear(X, PACKED, *INT4[:2], 4, BIAS, group_zero_point=INT4[2])",
       baraquant::quantized_int4_linear(kX, packed, scale, factor, 4, numbers({3}), zero_point));
  show("static_quantized_int4_linear(X, PACKED, *INT4[:2], 4, SCALE)",
       baraquant::static_quantized_int4_linear(kX, packed, scale, factor, 4, kScale));
}

void weight_only() {
  const at::Tensor w = at::arange(-12, 12, at::kChar).view({3, 8}), z = at::arange(6).view({3, 2});
  show("weight_only_linear(X, INTEGERS, BIAS)", baraquant::weight_only_linear(kX, w, numbers({3})));
  show(
      "weight_only_linear(X, INTEGERS, numbers(3, 2), BIAS, "
      "weight_zero_point=torch.arange(6).view(3, 2), group_size=4)",
      baraquant::weight_only_linear(kX, w, numbers({3, 2}), numbers({3}), z, 4));
}

void integer_backward() {
  const at::Tensor random = at::arange(1, 3), leaf = kX.detach().clone().requires_grad_();
  const auto [rows, row_scales] = baraquant::scaled_quantize_per_token(kX, at::arange(1.0f, 9.0f));
  show("scaled_quantize_per_token(X, torch.arange(1.0, 9.0))[0]", rows);
  show("scaled_quantize_per_token(X, torch.arange(1.0, 9.0))[1]", row_scales);
  const auto [columns, scales] =
      baraquant::scaled_quantize_transposed(kX, at::arange(1.0f, 5.0f), random);
  show("COLUMNS[0]", columns);
  show("COLUMNS[1]", scales);
  show("transpose_int8(COLUMNS[0])", baraquant::transpose_int8(columns));
  at::manual_seed(3);
  show("integer_backward()[0]", baraquant::draw_random(kX, 2).slice(0, 1));
  const auto y = baraquant::qat_linear(leaf, numbers({3, 8}, -2), numbers({3}), true, -128, 127,
                                       -128, 127, "int8", "stochastic");
  y.sum().backward();
  show("integer_backward()[1]", leaf.grad());
}

void errors() {
  using namespace baraquant;
  const at::Tensor integers = at::ones({4, 8}, at::kChar);
  show_error("fake_quantize_per_channel(X, SCALE, None, 0)",
             [] { fake_quantize_per_channel(kX, kScale, std::nullopt, 0); });
  show_error("quantize_per_channel(X, SCALES, None, 2)",
             [] { quantize_per_channel(kX, kScales, std::nullopt, 2); });
  show_error("quantize_per_tensor(X, -1.0, 0)", [] { quantize_per_tensor(kX, -1.0, 0); });
  show_error("quantize_per_tensor(X, 0.5, 0, -8, 7, dtype=torch.int16)",
             [] { quantize_per_tensor(kX, 0.5, 0, -8, 7, at::kShort); });
  show_error("fake_quantize_per_tensor(ROWS, 0.5, 0)",
             [&] { fake_quantize_per_tensor(integers, 0.5, 0); });
  show_error("fake_quantize_per_group(X, GROUPS, None, 0)",
             [] { fake_quantize_per_group(kX, kGroups, std::nullopt, 0); });
  show_error("choose_qparams_per_tensor(X.to_sparse())",
             [] { choose_qparams_per_tensor(kX.to_sparse()); });
  show_error("quantized_linear(X, X, SCALES)", [] { quantized_linear(kX, kX, kScales); });
  show_error("scaled_quantize_per_token(X, torch.ones(8), random=torch.ones(2))",
             [] { scaled_quantize_per_token(kX, at::ones({8}), at::ones({2})); });
  show_error("draw_random(X, 0)", [] { draw_random(kX, 0); });
  show_error("qat_linear(X, WEIGHT, backward='int4')", [] {
    qat_linear(kX, numbers({3, 8}, -2), std::nullopt, true, -128, 127, -128, 127, "int4");
  });
  show_error("quantize_per_channel(X, LEARNED, None, 0, -8, 7, dtype=torch.float32)", [] {
    quantize_per_channel(kX, kScales.clone().requires_grad_(), std::nullopt, 0, -8, 7, at::kFloat);
  });
}

}  // namespace

int main() {
  affine();
  gradients();
  range();
  products();
  integer_backward();
  four_bits();
  weight_only();
  errors();
}
